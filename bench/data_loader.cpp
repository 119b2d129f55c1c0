// The cost of a loader of records compared with the memory that it moves: the goals of docs/benchmarks.md, one line
// each.
//   build/release/bench/data_loader [--rounds N] [--only WORD] [--folder PATH] [--benchmark_format=json]
//   mpirun -n 2 build/release/bench/data_loader ...     # all ranks at once, their rates together
//
// Contenders of a row take turns, so that a drift of the machine's speed affects all contenders. A row is the median of
// its rounds.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <muster/muster.hpp>

#include <muster/data/order/batch_sampler.hpp>
#include "rows.hpp"

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Fixed-size records of bytes, contiguous in memory or in a mapped file, in the form of CIFAR's files.
class plain_records {
 public:
  plain_records(std::shared_ptr<const std::byte> bytes, std::uint64_t size, std::size_t stride,
                std::vector<std::uint64_t> shape)
      : bytes_(std::move(bytes)), size_(size), stride_(stride) {
    auto schema = std::make_shared<muster::data::record_schema>();
    schema->fields = {{"image", muster::dtype::uint8, std::move(shape)}};
    schema->labels = {"label"};
    schema_ = std::move(schema);
  }
  std::string_view name() const { return "plain"; }
  std::uint64_t size() const { return size_; }
  std::uint64_t digest() const { return size_ * 31 + stride_; }
  const muster::data::record_schema& schema() const { return *schema_; }
  void sizes(std::span<const muster::sample_id>, std::span<std::uint64_t> out) const {
    std::fill(out.begin(), out.end(), schema_->record_bytes());
  }
  void read(std::span<const muster::sample_id> ids, const muster::data::record_rows& rows,
            std::vector<muster::bad_record>* = nullptr) const {
    const std::size_t record = schema_->record_bytes();
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const std::byte* const from = bytes_.get() + ids[k] * stride_;
      if (!rows.labels.empty()) rows.labels[k] = static_cast<float>(from[stride_ - 1]);
      if (!rows.bytes.empty()) std::memcpy(rows.bytes.data() + k * record, from, record);
    }
  }
  bool mapped() const { return true; }
  std::span<const std::byte> view(muster::sample_id id) const {
    return {bytes_.get() + id * stride_, schema_->record_bytes()};
  }

 private:
  std::shared_ptr<const std::byte> bytes_;
  std::uint64_t size_;
  std::size_t stride_;
  std::shared_ptr<const muster::data::record_schema> schema_;
};
static_assert(muster::data::mapped_record_source<plain_records>);

std::shared_ptr<const std::byte> random_bytes(std::size_t size) {
  auto bytes = std::make_shared<muster::buffer<std::byte>>(size);
  muster::random_stream random(1);
  for (std::size_t i = 0; i + 8 <= size; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes->data() + i, &word, 8);
  }
  return {bytes, bytes->data()};
}

// The samples of an epoch, and its seconds.
struct lap {
  double items = 0;
  double seconds = 0;
  double rate() const { return items / seconds; }
};

template <class Loader>
lap run_epoch(Loader& loader) {
  lap all;
  const double begin = now();
  float use = 0;
  while (const auto batch = loader.next({0, 1})) {
    all.items += static_cast<double>(batch.samples.size());
    use += static_cast<float>(batch.bytes[batch.bytes.size() / 2]) + batch.labels[0];
    loader.commit();
  }
  all.seconds = now() - begin;
  loader.next_epoch();
  if (use == 0.125f) std::abort();  // Prevents the compiler from removing the reads.
  return all;
}

// Copies the same bytes by memcpy, from a batch in the cache to a ring as large as a loader's. Each thread has its own
// ring.
class copier {
 public:
  copier(std::size_t samples, std::size_t batch, std::size_t record, int threads)
      : batch_(batch), bytes_(batch * record), batches_(samples / batch / static_cast<std::size_t>(threads)) {
    for (int i = 0; i < threads; ++i)
      places_.push_back({muster::buffer<std::byte>(bytes_), muster::buffer<std::byte>(ring * bytes_)});
  }
  lap operator()() {
    std::vector<std::jthread> others;
    const double begin = now();
    for (std::size_t i = 1; i < places_.size(); ++i) others.emplace_back([this, i] { copy(places_[i]); });
    copy(places_[0]);
    others.clear();
    return {static_cast<double>(batches_ * batch_ * places_.size()), now() - begin};
  }

 private:
  static constexpr std::size_t ring = 5;
  struct node_id {
    muster::buffer<std::byte> from, to;
  };
  void copy(node_id& at) const {
    for (std::size_t i = 0; i < batches_; ++i) std::memcpy(at.to.data() + i % ring * bytes_, at.from.data(), bytes_);
  }
  std::size_t batch_, bytes_, batches_;
  std::vector<node_id> places_;
};

struct contender {
  std::string name;
  std::function<lap()> run;
  std::vector<double> rates = {};
  double median() const {
    auto sorted = rates;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

std::string only;
int rounds = 9;

muster::group* world = nullptr;
std::optional<bench::row_report> report;

template <class... Values>
void print(const char* format, Values... values) {
  report->print(format, values...);
}

bool is_selected(const std::string& row) { return only.empty() || row.find(only) != std::string::npos; }

// Runs contenders in turns, each at all ranks at once. Returns their medians, for all ranks together.
std::vector<double> measure(std::vector<contender> contenders) {
  for (auto& contender : contenders) (void)contender.run();
  for (int round = 0; round < rounds; ++round) {
    for (auto& contender : contenders) {
      muster::barrier(*world);
      contender.rates.push_back(contender.run().rate());
    }
  }
  std::vector<double> medians;
  for (const auto& contender : contenders) {
    medians.push_back(muster::allreduce(*world, contender.median(), muster::sum));
    print("  %-44s %12.4g /s\n", contender.name.c_str(), medians.back());
    report->add(contender.name, world->size() / medians.back(), medians.back());
  }
  return medians;
}

void verdict(const char* name, double value, double goal) {
  print("  %-44s %12.3f    goal %.2f %s\n", name, value, goal, value >= goal ? "met" : "MISSED");
}

void images() {
  if (!is_selected("images")) return;
  constexpr std::size_t count = 50'000, record = 3 * 32 * 32, batch = 128, output = record * sizeof(float);
  print("images: %zu of 3x32x32 uint8 to float32, shuffled batches of %zu with crop, flip, normalise\n", count, batch);
  const plain_records data(random_bytes(count * (record + 1) + 64), count, record + 1, {3, 32, 32});
  const auto pipeline = [&] {
    return data | muster::shuffle(1) | muster::batch(batch) | muster::augment(muster::crop_flip);
  };
  auto one_thread = pipeline();
  auto two_threads = pipeline() | muster::prefetch({.batches = 4, .threads = 1});
  // The least memory traffic of any loader: each record is read at its position in a shuffled order while the next
  // record is prefetched, and its output is copied from the cache to a ring of batches. Nothing is computed.
  muster::data::detail::sampler order;
  std::vector<muster::sample_id> ids(count);
  const muster::buffer<std::byte> from(output);
  muster::buffer<std::byte> to(5 * batch * output);
  std::uint64_t epoch = 0;
  const auto read_and_copy = [&] {
    order.assign({.order = muster::sample_order::shuffled, .size = count, .seed = 1, .epoch = ++epoch});
    order.fill(0, ids);
    std::uint64_t use = 0;
    const double begin = now();
    for (std::size_t k = 0; k < count; ++k) {
      if (k + 1 < count) muster::data::detail::fetch_ahead(data.view(ids[k + 1]));
      const auto view = data.view(ids[k]);
      for (std::size_t at = 0; at + 8 <= record; at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, view.data() + at, sizeof word);
        use += word;
      }
      std::memcpy(to.data() + k % (5 * batch) * output, from.data(), output);
    }
    if (use == 1) std::abort();  // Prevents the compiler from removing the reads.
    return lap{static_cast<double>(count), now() - begin};
  };
  const auto rates = measure(
      {{"muster, one thread", [&] { return run_epoch(one_thread); }},
       {"memcpy of the output, one thread", [c = std::make_shared<copier>(count, batch, output, 1)] { return (*c)(); }},
       {"muster, two threads", [&] { return run_epoch(two_threads); }},
       {"memcpy of the output, two threads",
        [c = std::make_shared<copier>(count, batch, output, 2)] { return (*c)(); }},
       {"records read in that order, memcpy of the output", read_and_copy}});
  verdict("one thread / memcpy", rates[0] / rates[1], 0.90);
  print("  %-44s %12.3f\n", "one thread / records read, and memcpy", rates[0] / rates[4]);
  verdict("two threads / one thread", rates[2] / rates[0], 1.8);
  verdict("two threads / 30,000 (PyTorch's best)", rates[2] / 30000, 18);
}

std::shared_ptr<const std::byte> mapped_file(const std::string& path, std::size_t size) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (file < 0) std::abort();
  std::vector<char> block(std::size_t{1} << 20);
  muster::random_stream random(2);
  for (std::size_t done = 0; done < size; done += block.size()) {
    for (std::size_t i = 0; i < block.size(); i += 8) {
      const std::uint64_t word = random();
      std::memcpy(block.data() + i, &word, 8);
    }
    if (::write(file, block.data(), std::min(block.size(), size - done)) < 0) std::abort();
  }
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  ::close(file);
  ::unlink(path.c_str());
  return {static_cast<const std::byte*>(memory),
          [size](const std::byte* p) { ::munmap(const_cast<std::byte*>(p), size); }};
}

void mapped(const std::string& folder, std::size_t record, std::size_t count, double global_goal, double block_goal) {
  const std::string row = "mapped-" + std::to_string(record);
  if (!is_selected(row)) return;
  print("%s: %zu records of %zu bytes from a mapped file in the page cache, batches of 128\n", row.c_str(), count,
        record);
  const plain_records data(mapped_file(folder + "/records", count * record), count, record, {record});
  auto sequential = data | muster::batch(128);
  auto global = data | muster::shuffle(1, {.order = muster::sample_order::shuffled}) | muster::batch(128);
  auto blocks = data | muster::shuffle(1, {.order = muster::sample_order::block_window}) | muster::batch(128);
  const auto rates = measure({{"in file order", [&] { return run_epoch(sequential); }},
                              {"global shuffle", [&] { return run_epoch(global); }},
                              {"block shuffle", [&] { return run_epoch(blocks); }}});
  verdict("global shuffle / file order", rates[1] / rates[0], global_goal);
  verdict("block shuffle / file order", rates[2] / rates[0], block_goal);
}

void resume() {
  if (!is_selected("resume")) return;
  constexpr std::size_t count = 1'000'000;
  print("resume: time to the first batch of 128 of %zu records, at half an epoch and at its start\n", count);
  const plain_records data(random_bytes(count * 64), count, 64, {64});
  for (const auto order :
       {muster::sample_order::shuffled, muster::sample_order::feistel, muster::sample_order::block_window}) {
    const auto first_batch = [&](std::uint64_t position) {
      auto loader = data | muster::shuffle(1, {.order = order}) | muster::batch(128) | muster::prefetch(2);
      muster::cursor at = loader.cursor();
      at.position = position;
      const double begin = now();
      loader.open(at);
      const auto batch = loader.next({0, 1});
      return lap{batch ? 1.0 : 0.0, now() - begin};
    };
    const std::string name(to_string(order));
    const auto rates = measure({{name + ", start", [&] { return first_batch(0); }},
                                {name + ", half", [&] { return first_batch(count / 256 * 128); }}});
    verdict("start / half (1 / 1.1 or more)", rates[1] / rates[0], 1 / 1.1);
  }
}

void caches(const std::string& folder) {
  if (!is_selected("cache")) return;
  constexpr std::size_t count = 20'000, record = 12288, batch = 128;
  print("cache: second epoch, %zu records of %zu bytes, shuffled batches of %zu, one thread\n", count, record, batch);
  const auto bytes = random_bytes(count * record);
  const plain_records data(bytes, count, record, {record});
  auto memory = data | muster::shuffle(1) | muster::batch(batch) | muster::cache(muster::in_memory);
  // The same without a cache: the records are copied in the same order, from memory at the same distance.
  muster::data::detail::sampler order;
  std::vector<muster::sample_id> ids(count);
  muster::buffer<std::byte> to(5 * batch * record);
  std::uint64_t epoch = 0;
  const auto copy = [&] {
    order.assign({.order = muster::sample_order::shuffled, .size = count, .seed = 1, .epoch = ++epoch});
    order.fill(0, ids);
    const double begin = now();
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(to.data() + i % (5 * batch) * record, bytes.get() + ids[i] * record, record);
    }
    return lap{static_cast<double>(count), now() - begin};
  };
  const auto rates =
      measure({{"cache in memory", [&] { return run_epoch(memory); }}, {"memcpy in the same order", copy}});
  verdict("cache / memcpy", rates[0] / rates[1], 0.95);

  const std::string where = folder + "/cache";
  std::filesystem::remove_all(where);
  {
    auto disk = data | muster::batch(batch) | muster::cache(where);
    (void)run_epoch(disk);
    const plain_records same(mapped_file(folder + "/records", count * record), count, record, {record});
    auto file = same | muster::batch(batch);
    const auto disk_rates = measure({{"cache on disk, in its order", [&] { return run_epoch(disk); }},
                                     {"sequential read of a mapped file", [&] { return run_epoch(file); }}});
    verdict("cache / sequential read", disk_rates[0] / disk_rates[1], 0.95);
  }
  std::filesystem::remove_all(where);
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    world = &context.world();
    const auto flags = bench::take_report_flags(argc, argv);
    report.emplace(flags, *world);
    if (flags.quick) rounds = 1;
    std::string folder = std::filesystem::temp_directory_path().string();
    for (int i = 1; i < argc; ++i) {
      const std::string_view flag = argv[i];
      const char* const value = i + 1 < argc ? argv[++i] : "";
      if (flag == "--rounds") {
        rounds = std::max(1, std::atoi(value));
      } else if (flag == "--only") {
        only = value;
      } else if (flag == "--folder") {
        folder = value;
      } else {
        throw muster::configuration_error("unknown argument '" + std::string(flag) +
                                          "' (known: --rounds --only --folder); drop it");
      }
    }
    folder += "/muster-bench-" + std::to_string(::getpid());
    std::filesystem::create_directories(folder);
    images();
    mapped(folder, 3072, 100'000, 0.60, 0.70);
    mapped(folder, 16384, 20'000, 0.95, 0.95);
    resume();
    caches(folder);
    std::filesystem::remove_all(folder);
    report->write();
  });
}
