// Writes a file in each format of the library, and prints the values in such files (tests/golden/README.md).
//
//     golden_library write FOLDER             writes FOLDER/checkpoint, tables, records and store
//     golden_library FORMAT FOLDER            prints the values in FOLDER
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/core/random.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/source_statistics.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/sync/gradient_sync.hpp>
#include <muster/train/tracker.hpp>

#include <muster/ps/table_files.hpp>
#include "../comm/ranks.hpp"
#include "../elastic/numbers.hpp"
#include "../ps/jobs.hpp"
#include "../train/heap.hpp"

namespace {

template <class T>
std::string line_of(std::span<const T> values) {
  std::string line;
  for (const T value : values) {
    char text[32];
    std::snprintf(text, sizeof text, " %.9g", static_cast<double>(value));
    line += text;
  }
  return line + "\n";
}

// ---- checkpoints of 2 ranks in the middle of the second epoch, with rank-local parts ----

struct named_optimizer {
  const char* folder;
  const char* text;
  std::vector<std::string> arrays;
};
const std::vector<named_optimizer> optimizers = {
    {"momentum", "momentum:0.75", {"velocity"}}, {"nesterov", "nesterov:0.75,decay=0.0625", {"velocity"}},
    {"adam", "adam", {"mean", "square"}},        {"adamw", "adamw,decay=0.0625,decay-of=weights", {"mean", "square"}},
    {"adagrad", "adagrad", {"squares"}},         {"lars", "lars:0.75,decay=0.0625", {"velocity"}}};

struct training {
  training(muster::group& world, const std::string& by)
      : chance(3, static_cast<std::uint64_t>(world.rank())),
        arena(memory, {{"layer.weight", {3, 5}}, {"layer.bias", {3}}}),
        sync(arena, {.codec = muster::compress("topk:0.5")}),
        optimizer(muster::make_optimizer(arena, by)),
        tracker(world, {.goal = {"accuracy", 0.5}}),
        loader(numbers{100} | muster::shuffle(17) | muster::batch(10)),
        state{arena,
              optimizer,
              tracker,
              muster::restored_values{"mean", std::span(mean), muster::state_kind::rank_local},
              muster::restored_values{"dropout", std::span(&chance, 1), muster::state_kind::rank_local},
              loader.cursor()} {}

  void run_to(muster::group& world, std::uint64_t steps) {
    auto session = muster::fixed_session(world);
    const auto step = [&](muster::step& now) {
      const auto batch = loader.next(now.shard());
      auto pass = sync.begin(now.group());
      pass.add_samples(batch.samples.size());
      for (std::size_t tensor = 2; tensor-- > 0;) {
        float place = 1;
        for (float& value : pass.gradient(tensor)) {
          value = static_cast<float>(chance.below(64)) / 64;
          for (const auto id : batch.samples) value += static_cast<float>(id) * place++ / 1024;
        }
        pass.ready(tensor);
      }
      pass.wait();
      mean[now.group().rank() == 0 ? 0 : 1] += 0.25f;
      optimizer.apply(0.125);
    };
    while (session.run(state, step, {.steps = steps})) {
    }
  }

  heap memory;
  std::vector<float> mean = std::vector<float>(3);
  muster::random_stream chance;
  muster::arena arena;
  muster::gradient_sync sync;
  muster::any_optimizer optimizer;
  muster::tracker tracker;
  muster::loader loader;
  muster::state state;
};

void write_checkpoints(const std::string& folder) {
  for (const auto& by : optimizers) {
    test::run_ranks(2, [&](muster::group& world) {
      training job(world, by.text);
      auto session = muster::fixed_session(world);
      job.run_to(world, 10);
      session.evaluate(job.state, [&](muster::step& now) {
        job.tracker.end_epoch(now.group(), {.train_loss = 0.75, .val_loss = 0.875, .val_accuracy = 0.625});
      });
      job.run_to(world, 13);
      muster::checkpoint(folder + "/" + by.folder).save(session, job.state, 0.625);
    });
  }
}

// Returns the values of a training that resumes, before and after its next step.
std::string values_of_checkpoint(muster::group& world, const std::string& folder, const named_optimizer& by) {
  training job(world, by.text);
  auto session = muster::fixed_session(world);
  std::string text = std::string("rank ") + std::to_string(world.rank()) + " of " + by.folder + "\n";
  if (!muster::checkpoint(folder + "/" + by.folder).load(session, job.state)) return text + "there is none\n";
  const auto add_arrays = [&] {
    for (std::size_t tensor = 0; tensor < 2; ++tensor)
      text += job.arena.shapes()[tensor].name + line_of<float>(job.arena.parameter(tensor));
    for (const auto& name : by.arrays) text += name + line_of<float>(job.arena.state(name));
  };
  const auto& at = job.loader.cursor().current();
  text += "steps " + std::to_string(job.state.steps()) + ", epoch " + std::to_string(at.epoch) + ", position " +
          std::to_string(at.position) + "\nmean" + line_of<float>(job.mean);
  text += "drawn next " + std::to_string(muster::random_stream(job.chance)()) + "\n";
  for (const auto& part : job.state.parts()) text += "part '" + part.name + "'\n";
  for (const auto& epoch : job.tracker.epochs()) {
    const double figures[] = {epoch.metrics.train_loss, epoch.metrics.val_loss, epoch.metrics.val_accuracy};
    text += "epoch" + line_of<double>(figures);
  }
  text += job.tracker.time_to_goal() ? "the goal was reached\n" : "";
  add_arrays();
  job.run_to(world, 14);
  text += "after the next step\n";
  add_arrays();
  return text;
}

std::string values_of_checkpoints(const std::string& folder) {
  std::string text;
  for (const auto& by : optimizers) {
    std::string of[2];
    test::run_ranks(2, [&](muster::group& world) { of[world.rank()] = values_of_checkpoint(world, folder, by); });
    text += of[0] + of[1];
  }
  return text;
}

// ---- tables of a parameter server, saved by workers and by servers without workers ----

constexpr std::size_t dense_size = 40, width = 2;
const std::vector<std::uint64_t> keys = {3, 5, 1'000'000'007};

ps::job_options tables_of(int servers) {
  ps::job_options options;
  for (const char* const update : {"add", "momentum:0.125,0.75", "adam:0.125", "adagrad:0.125"}) {
    const std::string name(std::string_view(update).substr(0, std::string_view(update).find(':')));
    options.tables.push_back({.name = "dense " + name, .size = dense_size, .update = update, .ranges = 2});
    options.tables.push_back({.name = "rows " + name, .width = width, .update = update, .initial = 0.5f});
  }
  options.servers = servers;
  return patient(options);
}

void step(ps::client& tables, std::uint64_t number) {
  std::vector<float> dense(dense_size), rows(keys.size() * width);
  for (std::size_t i = 0; i < dense.size(); ++i) dense[i] = static_cast<float>((i * 7 + number * 3) % 11) / 8 - 0.5f;
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>((i * 5 + number) % 7) / 4 - 0.75f;
  for (std::uint32_t table = 0; table < tables_of(1).tables.size(); ++table) {
    if (table % 2 == 0) tables.push(table, dense);
    if (table % 2 == 1) tables.push(table, keys, rows);
  }
}

std::string values_of(ps::client& tables) {
  std::string text;
  std::vector<float> dense(dense_size), rows(keys.size() * width);
  const auto options = tables_of(1);
  for (std::uint32_t table = 0; table < options.tables.size(); ++table) {
    if (table % 2 == 0) tables.pull(table, dense);
    if (table % 2 == 1) tables.pull(table, keys, rows);
    text += options.tables[table].name + line_of<float>(table % 2 == 0 ? dense : rows);
  }
  return text;
}

// Saves the tables like servers whose last worker has died.
void save_by_server(ps::job& job, const std::string& folder) {
  ps::detail::server_part all;
  for (ps::range_id range = 0; range < job.layout().ranges(); ++range) {
    all.ranges.push_back(range);
    ps::detail::add_part(all.values, job.layout().range(range).table, job.tables().save(range));
    muster::detail::wire_writer places;
    places.add(range);
    const auto text = places.take();
    ps::detail::add_part(all.values, ps::detail::places_part, std::as_bytes(std::span(text)));
  }
  all.plan = ps::order_plan{.from = {.epoch = 3, .position = 4}, .steps = 2};
  all.left.push_back({.outcome = ps::lease::kind::granted, .part = 1, .parts = 2, .batches = 5});
  ps::detail::save_by_servers saved(std::make_shared<muster::memory_store>(), "saved", folder);
  saved.add(job.layout(), 0, std::move(all), muster::deadline_after(muster::seconds(60)));
}

void write_tables(const std::string& folder) {
  run_job(test::fabric::threads, 2, tables_of(2), [&](ps::job& job, muster::group& workers) {
    if (workers.rank() == 0) {
      step(job.tables(), 1);
      step(job.tables(), 2);
    }
    ps::save_tables(job, workers, folder + "/of workers", {.steps = 2, .data = {.epoch = 3, .position = 4}});
    if (workers.rank() == 0) save_by_server(job, folder + "/of servers");
  });
}

std::string values_of_tables(const std::string& folder) {
  std::string text;
  for (const std::string by : {"of workers", "of servers"}) {
    // Tables that servers saved require the same ranges.
    run_job(test::fabric::threads, 1, tables_of(by == "of workers" ? 1 : 2), [&](ps::job& job, muster::group& workers) {
      const auto found = ps::load_tables(job, workers, folder + "/" + by);
      if (!found) throw muster::data_error({folder + "/" + by}, "has no tables; check the path");
      text += by + ": steps " + std::to_string(found->position.steps) + ", epoch " +
              std::to_string(found->position.data.epoch) + ", position " +
              std::to_string(found->position.data.position) + "\n";
      for (const auto& left : found->left) {
        text += "left: part " + std::to_string(left.part) + " of " + std::to_string(left.parts) + " of " +
                std::to_string(left.batches) + " batches\n";
      }
      text += values_of(job.tables());
      step(job.tables(), 3);
      text += "after the next step\n" + values_of(job.tables());
    });
  }
  return text;
}

// ---- records of each form, plain and compressed ----

muster::data::record_schema schema_of(muster::data::record_form form) {
  if (form == muster::data::record_form::bytes) return {form, {}, 0, {}};
  if (form == muster::data::record_form::sparse) return {form, {}, 1000, {"a", "b"}};
  return {form, {{"image", muster::dtype::uint8, {3, 2}}, {"weight", muster::dtype::float32, {}}}, 0, {"label"}};
}

std::vector<std::byte> record_of(muster::data::record_form form, std::uint64_t k) {
  std::vector<std::byte> bytes(form == muster::data::record_form::bytes   ? k % 5
                               : form == muster::data::record_form::fixed ? 10
                                                                          : 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(k * 16 + i);
  if (form == muster::data::record_form::fixed) {
    const float weight = static_cast<float>(k) / 4;
    std::memcpy(bytes.data() + 6, &weight, sizeof weight);
  }
  for (std::uint32_t index = 0; form == muster::data::record_form::sparse && index < k % 4; ++index) {
    const struct {
      std::uint32_t feature;
      float value;
    } entry{index * 300 + static_cast<std::uint32_t>(k), 0.25f * static_cast<float>(index + k)};
    const auto added = std::as_bytes(std::span(&entry, 1));
    bytes.insert(bytes.end(), added.begin(), added.end());
  }
  return bytes;
}

constexpr std::pair<const char*, muster::data::record_form> forms[] = {{"fixed", muster::data::record_form::fixed},
                                                                       {"bytes", muster::data::record_form::bytes},
                                                                       {"sparse", muster::data::record_form::sparse}};

void write_records(const std::string& folder) {
  for (const auto& [name, form] : forms) {
    for (const std::size_t block : {std::size_t{0}, std::size_t{64}}) {
      const std::string path = folder + "/" + name + (block == 0 ? "" : "-compressed");
      std::filesystem::create_directories(path);
      muster::data::record_set_writer writer(path, schema_of(form), {.block_bytes = block});
      for (std::uint64_t k = 0; k < 12; ++k) {
        const std::vector<float> labels = {static_cast<float>(k % 3), 0.5f * static_cast<float>(k)};
        if (k == 8) writer.next_file();
        writer.append(record_of(form, k), std::span(labels).first(schema_of(form).labels.size()));
      }
      writer.commit();
      if (form == muster::data::record_form::bytes) continue;
      muster::keep_statistics(path,
                              muster::statistics(muster::data::any_record_source(muster::data::record_files(path))));
    }
  }
}

std::string values_of_records(const std::string& folder) {
  std::string text;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  for (const auto& name : names) {
    const muster::data::record_files source(folder + "/" + name);
    text += name + ": " + muster::data::to_string(source.schema()) + "\n";
    char digest[64];
    std::snprintf(digest, sizeof digest, "digest %016llx\n", static_cast<unsigned long long>(source.digest()));
    text += digest;
    for (muster::sample_id id = 0; id < source.size(); ++id) {
      std::uint64_t size = 0;
      source.sizes(std::span(&id, 1), std::span(&size, 1));
      std::vector<std::byte> bytes(size);
      std::vector<float> labels(source.schema().labels.size());
      source.read(std::span(&id, 1), {bytes, labels});
      text += "record";
      for (const std::byte byte : bytes) {
        char digits[4];
        std::snprintf(digits, sizeof digits, " %02x", static_cast<unsigned>(byte));
        text += digits;
      }
      text += ", labels" + line_of<float>(labels);
    }
    if (const auto known = source.known_statistics())
      text += "statistics " + muster::data::detail::to_text(*known) + "\n";
  }
  return text;
}

// ---- the journal of a store ----

auto soon() { return muster::deadline_after(muster::seconds(20)); }

void write_store(const std::string& folder) {
  muster::store_server server("127.0.0.1:0", "t", folder);
  muster::tcp_store store(server.address(), "t", soon());
  auto version = store.compare_and_swap("generation", 0, "first", soon()).now.version;
  version = store.compare_and_swap("generation", version, "second", soon()).now.version;
  (void)store.compare_and_swap("members", 0, std::string("zero \0 and \n", 12), soon());
  version = store.compare_and_swap("gone", 0, "removed below", soon()).now.version;
  (void)store.compare_and_swap("gone", version, std::nullopt, soon());
}

std::string values_of_store(const std::string& folder) {
  muster::store_server server("127.0.0.1:0", "t", folder);
  muster::tcp_store store(server.address(), "t", soon());
  std::string text;
  for (const char* const key : {"generation", "members", "gone"}) {
    const auto found = store.get(key, soon());
    text += std::string(key) + ": version " + std::to_string(found.version) + ",";
    for (const char letter : found.value) text += " " + std::to_string(static_cast<unsigned char>(letter));
    text += "\n";
  }
  return text + "the next version " + std::to_string(store.compare_and_swap("new", 0, "", soon()).now.version) + "\n";
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<std::string(const std::string&)>> formats = {
      {"checkpoint", values_of_checkpoints},
      {"tables", values_of_tables},
      {"records", values_of_records},
      {"store", values_of_store}};
  try {
    if (argc != 3) throw muster::configuration_error("golden_library takes two words (see the source); give these");
    const std::string command = argv[1], folder = argv[2];
    if (const auto found = formats.find(command); found != formats.end()) {
      std::fputs(found->second(folder).c_str(), stdout);
      return 0;
    }
    write_checkpoints(folder + "/checkpoint");
    write_tables(folder + "/tables");
    write_records(folder + "/records");
    write_store(folder + "/store");
    return 0;
  } catch (...) {
    const auto failure = std::current_exception();
    std::fprintf(stderr, "error: %s\n", muster::describe(failure).c_str());
    return muster::exit_status_of(failure);
  }
}
