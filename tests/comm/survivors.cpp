// Calls random collectives one after the other and checks every result, until time is up or a call fails: then it
// prints the failure and its time. tests/comm/survivors.py starts the program and stops or kills its ranks.
//
// usage: test_survivors SECONDS [stay | leave RANK | abort RANK | quit RANK | finish]
//   stay   after an error, waits for a line of input and prints whether a rank wrote into its memory in the meantime
//   leave  that rank returns from main at a random moment, as if it had nothing more to do
//   abort  that rank aborts at a random moment
//   quit   the same, and its process has ended when the others check
//   finish makes one call, a reduce to rank 0, for which rank 1 waits for a line of input
#include <muster/muster.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <thread>

namespace {

constexpr std::size_t largest = std::size_t{1} << 20;  // number of elements of 4 bytes

std::string ranks_of(const std::vector<int>& ranks) {
  std::string list;
  for (const int r : ranks) list += (list.empty() ? "" : ",") + std::to_string(r);
  return list.empty() ? "-" : list;
}

void print_line(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

struct plan {
  double seconds = 1;
  bool stays = false;
  int leaver = -1;
  int quitter = -1;
  bool ends_at_once = false;
};

class drill {
 public:
  drill(muster::context& context, std::uint64_t seed)
      : world_(context.world()),
        half_(world_.split(world_.rank() % 2)),
        seed_(seed),
        shared_in_(context.allocate<std::uint32_t>(largest)),
        shared_out_(context.allocate<std::uint32_t>(largest)),
        own_in_(largest),
        own_out_(largest) {}

  /// Runs some collectives; returns false when rank 0 reports that time is up.
  bool round(bool time_is_up) {
    for (int i = 0; i < 8; ++i) call_random(++number_);
    int up = time_is_up ? 1 : 0;
    muster::broadcast(world_, std::span(&up, 1), 0);
    return up == 0;
  }
  [[nodiscard]] std::uint64_t collectives() const noexcept { return number_; }
  [[nodiscard]] std::uint64_t digest() const {
    muster::digest sum;
    for (const auto* data : {&shared_in_, &shared_out_, &own_in_, &own_out_}) {
      for (const std::uint32_t x : *data) sum.add(std::uint64_t{x});
    }
    return sum.value();
  }

 private:
  using span = std::span<std::uint32_t>;

  // The contribution of rank r at element k in the collective with that number is `start + k * slope`: the sum over
  // ranks is known without the ranks' data.
  [[nodiscard]] static std::uint32_t slope(std::uint64_t number) {
    return static_cast<std::uint32_t>(muster::mix(number) | 1);
  }
  [[nodiscard]] static std::uint32_t start(std::uint64_t number, int rank) {
    return static_cast<std::uint32_t>(muster::mix(number + 77)) * static_cast<std::uint32_t>(rank + 1);
  }
  static void fill(span data, std::uint32_t first, std::uint32_t step) {
    for (std::size_t k = 0; k < data.size(); ++k) data[k] = first + static_cast<std::uint32_t>(k) * step;
  }
  void expect(span data, std::uint32_t first, std::uint32_t step, const char* name) const {
    std::uint32_t different = 0;
    for (std::size_t k = 0; k < data.size(); ++k) different |= data[k] ^ (first + static_cast<std::uint32_t>(k) * step);
    if (different == 0) return;
    print_line("wrong result of " + std::string(name) + " of " + std::to_string(data.size()) + " elements, number " +
               std::to_string(number_) + " of seed " + std::to_string(seed_));
    std::_Exit(70);
  }

  void call_random(std::uint64_t number) {
    muster::random_stream random(seed_, number);  // the same draws at every rank
    auto& group = random.below(8) == 0 ? half_ : world_;
    const int n = group.size();
    const int me = group.rank();
    const auto ranks = static_cast<std::size_t>(n);
    const bool registered = random.below(2) == 0;
    auto& in = registered ? shared_in_ : own_in_;
    auto& out = registered ? shared_out_ : own_out_;
    const auto count =
        static_cast<std::size_t>(std::exp(random.uniform() * std::log(static_cast<double>(largest) + 0.5)));
    const int root = static_cast<int>(random.below(12)) % n;
    muster::collective_options call_options;
    const bool by_messages = random.below(5) == 0;
    const auto choose = [&](muster::algorithm named) {
      call_options.algorithm = by_messages ? named : muster::algorithm::automatic;
    };
    const std::uint32_t step = slope(number);
    std::uint32_t all_first = 0;
    for (int r = 0; r < n; ++r) all_first += start(number, r);
    const std::uint32_t all_step = step * static_cast<std::uint32_t>(n);
    const auto mine = muster::block_of(count, me, n);
    // elements per rank of a buffer that has a part for each rank
    const auto part = std::max<std::size_t>(1, count / ranks);
    const span data = in.span().first(count);
    const span result = out.span().first(count);
    switch (random.below(9)) {
      case 0:
        return muster::barrier(group);
      case 1:
        choose(muster::algorithm::tree);
        fill(data, start(number, me), step);
        muster::broadcast(group, data, root, call_options);
        return expect(data, start(number, root), step, "broadcast");
      case 2:
        choose(muster::algorithm::tree);
        fill(data, start(number, me), step);
        muster::reduce(group, data, result, muster::sum, root, call_options);
        if (me == root) expect(result, all_first, all_step, "reduce");
        return;
      case 3:
        choose(muster::algorithm::ring);
        fill(data, start(number, me), step);
        muster::reduce_scatter(group, data, out.span().first(mine.count), muster::sum, call_options);
        return expect(out.span().first(mine.count), all_first + static_cast<std::uint32_t>(mine.first) * all_step,
                      all_step, "reduce_scatter");
      case 4:
        choose(muster::algorithm::ring);
        fill(in.span().first(mine.count), start(number, me), step);
        muster::allgather(group, in.span().first(mine.count), result, call_options);
        for (int r = 0; r < n; ++r) {
          const auto block = muster::block_of(count, r, n);
          expect(result.subspan(block.first, block.count), start(number, r), step, "allgather");
        }
        return;
      case 5: {
        const span input = in.span().first(std::min(part * ranks, largest / ranks * ranks));
        fill(input, start(number, me), step);
        const span got = out.span().first(input.size());
        muster::all_to_all(group, input, got);
        const std::size_t each = input.size() / ranks;
        for (std::size_t r = 0; r < ranks; ++r) {
          expect(got.subspan(r * each, each),
                 start(number, static_cast<int>(r)) +
                     static_cast<std::uint32_t>(static_cast<std::size_t>(me) * each) * step,
                 step, "all_to_all");
        }
        return;
      }
      case 6: {  // two outstanding at a time
        const span low = data.first(count / 2);
        const span high = data.subspan(count / 2);
        fill(data, start(number, me), step);
        auto first = muster::allreduce_async(group, low, muster::sum);
        auto second = muster::allreduce_async(group, high, muster::sum);
        second.wait();
        first.wait();
        return expect(data, all_first, all_step, "two allreduces");
      }
      default:
        choose(muster::algorithm::ring);
        fill(data, start(number, me), step);
        if (random.below(2) == 0) {
          muster::allreduce(group, data, muster::sum, call_options);
          return expect(data, all_first, all_step, "allreduce in place");
        }
        muster::allreduce(group, data, result, muster::sum, call_options);
        return expect(result, all_first, all_step, "allreduce");
    }
  }

  muster::group& world_;
  muster::group half_;
  std::uint64_t seed_;
  std::uint64_t number_ = 0;
  muster::buffer<std::uint32_t> shared_in_;
  muster::buffer<std::uint32_t> shared_out_;
  muster::buffer<std::uint32_t> own_in_;
  muster::buffer<std::uint32_t> own_out_;
};

// Prints "error <nanoseconds of the monotonic clock> <exit status> <ranks that the error names> <text>".
void report(const muster::error& failure) {
  const auto now = muster::clock::now().time_since_epoch();
  std::vector<int> named;
  if (const auto* peer = dynamic_cast<const muster::peer_failure*>(&failure)) named = peer->ranks();
  if (const auto* late = dynamic_cast<const muster::timeout_error*>(&failure)) named = late->missing();
  print_line("error " + std::to_string(std::chrono::nanoseconds(now).count()) + " " +
             std::to_string(failure.exit_status()) + " " + ranks_of(named) + " " + failure.what());
}

// Returns true when the rank left early.
bool run(muster::context& context, const plan& chosen, std::uint64_t seed) {
  auto& world = context.world();
  drill work(context, seed);
  const auto begin = muster::clock::now();
  muster::random_stream own(seed, 1000 + static_cast<std::uint64_t>(world.rank()));
  std::uint64_t rounds_left = own.below(chosen.ends_at_once ? 8 : 50);
  muster::barrier(world);
  print_line("ready");
  try {
    while (work.round(muster::seconds_since(begin) > chosen.seconds)) {
      if (chosen.ends_at_once && world.rank() != chosen.quitter)
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
      if (rounds_left-- > 0) continue;
      rounds_left = ~std::uint64_t{0};
      if (world.rank() == chosen.leaver) return true;
      if (world.rank() == chosen.quitter) {
        world.abort("had enough", 9);
        if (chosen.ends_at_once) std::_Exit(9);
      }
    }
  } catch (const muster::error& failure) {
    report(failure);
    if (chosen.stays) {
      const auto before = work.digest();
      print_line("waits");
      std::string line;
      std::getline(std::cin, line);
      print_line(work.digest() == before ? "kept" : "changed");
    }
    throw;
  }
  print_line("done " + std::to_string(work.collectives()));
  return false;
}

// Makes the last call of a program: a rank that has finished the call may end although other ranks still wait in it.
void finish(muster::context& context) {
  auto& world = context.world();
  std::string line;
  if (world.rank() == 1) std::getline(std::cin, line);
  const std::vector<std::uint32_t> mine(100, 1);
  std::vector<std::uint32_t> all(100, 0);
  muster::reduce(world, mine, all, muster::sum, 0);
  if (world.rank() == 0 && all.back() != static_cast<std::uint32_t>(world.size()))
    print_line("wrong result of the reduce");
}

}  // namespace

int main(int argc, char** argv) {
  const char* const seed_text = std::getenv("MUSTER_TEST_SEED");
  const std::uint64_t seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 1;
  const auto read_plan = [&] {
    plan read;
    const std::string mode = argc > 2 ? argv[2] : "";
    if (argc > 1) read.seconds = std::strtod(argv[1], nullptr);
    read.stays = mode == "stay";
    if (argc > 3 && mode == "leave") read.leaver = std::atoi(argv[3]);
    if (argc > 3 && (mode == "abort" || mode == "quit")) read.quitter = std::atoi(argv[3]);
    read.ends_at_once = mode == "quit";
    return read;
  };
  const std::string mode = argc > 2 ? argv[2] : "";
  if (mode == "leave" || mode == "finish") {  // without run_main, which would wait for the other ranks
    try {
      muster::context context(argc, argv);
      if (mode == "finish") {
        finish(context);
      } else {
        run(context, read_plan(), seed);
      }
      return 0;
    } catch (const muster::error& failure) {
      if (mode == "finish") report(failure);
      return failure.exit_status();
    }
  }
  return muster::run_main(argc, argv, [&](muster::context& context) { run(context, read_plan(), seed); });
}
