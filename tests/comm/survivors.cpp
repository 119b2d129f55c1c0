// Calls random collectives one after the other and looks at every result, until time is up or something breaks: then it
// says what and when. tests/comm/survivors.py starts it and does things to its ranks.
//
// usage: test_survivors SECONDS [stay | leave RANK | abort RANK | quit RANK | finish]
//   stay   after an error, waits for a line of input and says whether a rank wrote into its memory in the meantime
//   leave  that rank returns from main at a random moment, as if it had nothing more to do
//   abort  that rank gives up at a random moment
//   quit   the same, and its process has ended when the others look up again
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

constexpr std::size_t largest = std::size_t{1} << 20;  // elements of 4 bytes

std::string ranks_of(const std::vector<int>& ranks) {
  std::string list;
  for (const int r : ranks) list += (list.empty() ? "" : ",") + std::to_string(r);
  return list.empty() ? "-" : list;
}

void say(const std::string& line) {
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

  /// Some collectives; false when rank 0 says that time is up.
  bool round(bool time_is_up) {
    for (int i = 0; i < 8; ++i) one(++number_);
    int up = time_is_up ? 1 : 0;
    muster::broadcast(world_, std::span(&up, 1), 0);
    return up == 0;
  }
  [[nodiscard]] std::uint64_t collectives() const noexcept { return number_; }
  [[nodiscard]] std::uint64_t digest() const {
    muster::digest sum;
    for (const auto* one : {&shared_in_, &shared_out_, &own_in_, &own_out_}) {
      for (const std::uint32_t x : *one) sum.add(std::uint64_t{x});
    }
    return sum.value();
  }

 private:
  using span = std::span<std::uint32_t>;

  // What rank r has at k in the collective of that number: the sum over ranks is known without them.
  [[nodiscard]] static std::uint32_t slope(std::uint64_t number) {
    return static_cast<std::uint32_t>(muster::mix(number) | 1);
  }
  [[nodiscard]] static std::uint32_t start(std::uint64_t number, int rank) {
    return static_cast<std::uint32_t>(muster::mix(number + 77)) * static_cast<std::uint32_t>(rank + 1);
  }
  static void fill(span data, std::uint32_t first, std::uint32_t step) {
    for (std::size_t k = 0; k < data.size(); ++k) data[k] = first + static_cast<std::uint32_t>(k) * step;
  }
  void expect(span data, std::uint32_t first, std::uint32_t step, const char* what) const {
    std::uint32_t different = 0;
    for (std::size_t k = 0; k < data.size(); ++k) different |= data[k] ^ (first + static_cast<std::uint32_t>(k) * step);
    if (different == 0) return;
    say("wrong result of " + std::string(what) + " of " + std::to_string(data.size()) + " elements, number " +
        std::to_string(number_) + " of seed " + std::to_string(seed_));
    std::_Exit(70);
  }

  void one(std::uint64_t number) {
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
    muster::options how;
    const bool by_messages = random.below(5) == 0;
    const auto by = [&](muster::algorithm named) {
      how.algorithm = by_messages ? named : muster::algorithm::automatic;
    };
    const std::uint32_t step = slope(number);
    std::uint32_t all_first = 0;
    for (int r = 0; r < n; ++r) all_first += start(number, r);
    const std::uint32_t all_step = step * static_cast<std::uint32_t>(n);
    const auto mine = muster::block_of(count, me, n);
    const auto part = std::max<std::size_t>(1, count / ranks);  // of buffers with one for each rank
    const span data = in.span().first(count);
    const span result = out.span().first(count);
    switch (random.below(9)) {
      case 0:
        return muster::barrier(group);
      case 1:
        by(muster::algorithm::tree);
        fill(data, start(number, me), step);
        muster::broadcast(group, data, root, how);
        return expect(data, start(number, root), step, "broadcast");
      case 2:
        by(muster::algorithm::tree);
        fill(data, start(number, me), step);
        muster::reduce(group, data, result, muster::sum, root, how);
        if (me == root) expect(result, all_first, all_step, "reduce");
        return;
      case 3:
        by(muster::algorithm::ring);
        fill(data, start(number, me), step);
        muster::reduce_scatter(group, data, out.span().first(mine.count), muster::sum, how);
        return expect(out.span().first(mine.count), all_first + static_cast<std::uint32_t>(mine.first) * all_step,
                      all_step, "reduce_scatter");
      case 4:
        by(muster::algorithm::ring);
        fill(in.span().first(mine.count), start(number, me), step);
        muster::allgather(group, in.span().first(mine.count), result, how);
        for (int r = 0; r < n; ++r) {
          const auto block = muster::block_of(count, r, n);
          expect(result.subspan(block.first, block.count), start(number, r), step, "allgather");
        }
        return;
      case 5: {
        const span whole = in.span().first(std::min(part * ranks, largest / ranks * ranks));
        fill(whole, start(number, me), step);
        const span got = out.span().first(whole.size());
        muster::all_to_all(group, whole, got);
        const std::size_t each = whole.size() / ranks;
        for (std::size_t r = 0; r < ranks; ++r) {
          expect(got.subspan(r * each, each),
                 start(number, static_cast<int>(r)) +
                     static_cast<std::uint32_t>(static_cast<std::size_t>(me) * each) * step,
                 step, "all_to_all");
        }
        return;
      }
      case 6: {  // two under way at a time
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
        by(muster::algorithm::ring);
        fill(data, start(number, me), step);
        if (random.below(2) == 0) {
          muster::allreduce(group, data, muster::sum, how);
          return expect(data, all_first, all_step, "allreduce in place");
        }
        muster::allreduce(group, data, result, muster::sum, how);
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

// "error <nanoseconds of the monotonic clock> <exit status> <ranks that it names> <text>"
void report(const muster::error& failure) {
  const auto now = muster::clock::now().time_since_epoch();
  std::vector<int> named;
  if (const auto* peer = dynamic_cast<const muster::peer_failure*>(&failure)) named = peer->ranks();
  if (const auto* late = dynamic_cast<const muster::timeout_error*>(&failure)) named = late->missing();
  say("error " + std::to_string(std::chrono::nanoseconds(now).count()) + " " + std::to_string(failure.exit_status()) +
      " " + ranks_of(named) + " " + failure.what());
}

// True when it left early.
bool run(muster::context& context, const plan& what, std::uint64_t seed) {
  auto& world = context.world();
  drill work(context, seed);
  const auto begin = muster::clock::now();
  muster::random_stream own(seed, 1000 + static_cast<std::uint64_t>(world.rank()));
  std::uint64_t rounds_left = own.below(what.ends_at_once ? 8 : 50);
  muster::barrier(world);
  say("ready");
  try {
    while (work.round(muster::seconds_since(begin) > what.seconds)) {
      if (what.ends_at_once && world.rank() != what.quitter) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      if (rounds_left-- > 0) continue;
      rounds_left = ~std::uint64_t{0};
      if (world.rank() == what.leaver) return true;
      if (world.rank() == what.quitter) {
        world.abort("had enough", 9);
        if (what.ends_at_once) std::_Exit(9);
      }
    }
  } catch (const muster::error& failure) {
    report(failure);
    if (what.stays) {
      const auto before = work.digest();
      say("waits");
      std::string line;
      std::getline(std::cin, line);
      say(work.digest() == before ? "kept" : "changed");
    }
    throw;
  }
  say("done " + std::to_string(work.collectives()));
  return false;
}

// The last call of a program: a rank that has made it may end, for all that others still wait in it.
void finish(muster::context& context) {
  auto& world = context.world();
  std::string line;
  if (world.rank() == 1) std::getline(std::cin, line);
  const std::vector<std::uint32_t> mine(100, 1);
  std::vector<std::uint32_t> all(100, 0);
  muster::reduce(world, mine, all, muster::sum, 0);
  if (world.rank() == 0 && all.back() != static_cast<std::uint32_t>(world.size())) say("wrong result of the reduce");
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
  if (mode == "leave" || mode == "finish") {  // without run_main, which would wait for the others
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
