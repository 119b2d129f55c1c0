// The time of a call at the stores in which ranks meet. One process holds as many members as several processes would.
//
//   build/release/bench/stores [Google Benchmark's flags]
//
// Rows: store/KIND/MEMBERS/CALL. Each member is an object with connections and its own thread, in this process.
// The last member makes the calls.
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <muster/comm/bootstrap/tcp_store.hpp>

#include "everywhere.hpp"

namespace {

auto soon() { return muster::deadline_after(muster::seconds(30)); }

/// The members in a store.
struct crew {
  std::vector<std::unique_ptr<muster::any_store>> members;
  std::unique_ptr<muster::store_server> server;
  crew() = default;
  crew(crew&&) = default;
  crew& operator=(crew&&) = delete;
  ~crew() { members.clear(); }  // Before the server is destroyed.
};

crew over_tcp(int count) {
  crew result;
  result.server = std::make_unique<muster::store_server>("127.0.0.1:0", "");
  for (int i = 0; i < count; ++i)
    result.members.push_back(std::make_unique<muster::tcp_store>(result.server->address(), "", soon()));
  return result;
}

void get(benchmark::State& state, muster::any_store& store) {
  for (auto round : state) benchmark::DoNotOptimize(store.get("key", soon()));
}

void swap(benchmark::State& state, muster::any_store& store) {
  auto version = store.get("swapped", soon()).version;
  const std::string value(1024, 'v');
  for (auto round : state) version = store.compare_and_swap("swapped", version, value, soon()).now.version;
}

using maker = crew (*)(int count);

void add(const std::string& kind, maker make) {
  for (const int count : {1, 3, 8}) {
    for (const auto& [name, call] : {std::pair("get", &get), std::pair("swap", &swap)}) {
      benchmark::RegisterBenchmark(("store/" + kind + "/" + std::to_string(count) + "/" + name).c_str(),
                                   [make, count, call = call](benchmark::State& state) {
                                     crew all = make(count);
                                     call(state, *all.members.back());
                                   })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

void enrol(muster::context&) { add("tcp", &over_tcp); }

}  // namespace

int main(int argc, char** argv) { return bench::run_everywhere(argc, argv, enrol); }
