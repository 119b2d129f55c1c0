// The measurements of bench/ps with ps-lite (https://github.com/dmlc/ps-lite), for the same host and run. It is built
// where ps-lite is installed, outside this repository:
//
//   g++ -std=c++14 -O3 -pthread -I PSLITE/include bench/peers/ps_lite.cpp PSLITE/build/libps.a -lzmq -lprotobuf \
//     -o ps_lite
//   PSLITE/tests/local.sh SERVERS WORKERS ./ps_lite add|discard|count
//
// One key has all values of a push. `add` applies += at the server, `discard` drops the pushed values. `count` shows
// the effect of a killed worker on a job: each worker uses its 4,000 samples, one per millisecond, and the server
// counts the samples. With PS_HEARTBEAT_INTERVAL=1 PS_HEARTBEAT_TIMEOUT=5 the scheduler detects dead nodes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ps/ps.h"

namespace {

using clock_type = std::chrono::steady_clock;

double seconds_since(clock_type::time_point begun) {
  return std::chrono::duration<double>(clock_type::now() - begun).count();
}

bool adds = false;
std::unordered_map<ps::Key, ps::SArray<float>> store;

void handle(const ps::KVMeta& meta, const ps::KVPairs<float>& asked, ps::KVServer<float>* server) {
  ps::KVPairs<float> answer;
  if (meta.push) {
    auto& values = store[asked.keys[0]];
    if (values.size() != asked.vals.size()) values.resize(asked.vals.size(), 0.0f);
    if (adds) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += asked.vals[i];
    }
  } else {
    answer.keys = asked.keys;
    answer.vals = store[asked.keys[0]];
    answer.lens = {static_cast<int>(answer.vals.size())};
  }
  server->Response(meta, answer);
}

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

void work() {
  ps::KVWorker<float> kv(0, 0);
  const auto measure = [&](const char* name, std::size_t bytes, std::size_t under_way, bool pulls, int turns,
                           std::size_t calls) {
    const ps::SArray<ps::Key> keys({bytes});
    const ps::SArray<float> values(bytes / sizeof(float), 1e-6f);
    const ps::SArray<int> lens({static_cast<int>(values.size())});
    kv.Wait(kv.ZPush(keys, values, lens));
    std::vector<double> times;
    for (int turn = 0; turn < turns; ++turn) {
      std::deque<int> open;
      std::deque<ps::SArray<float>> memory;
      const auto begun = clock_type::now();
      for (std::size_t i = 0; i < calls; ++i) {
        if (open.size() == under_way) {
          kv.Wait(open.front());
          open.pop_front();
          if (pulls) memory.pop_front();
        }
        if (pulls) {
          memory.emplace_back(values.size());
          open.push_back(kv.ZPull(keys, &memory.back()));
        } else {
          open.push_back(kv.ZPush(keys, values, lens));
        }
      }
      for (const int timestamp : open) kv.Wait(timestamp);
      times.push_back(seconds_since(begun) / static_cast<double>(calls));
    }
    const double once = median(times);
    if (std::string(name) == "latency")
      std::printf("ps-lite/latency/%zu  %.4g microseconds\n", bytes, once * 1e6);
    else if (std::string(name) == "rate")
      std::printf("ps-lite/rate/%zu  %.4g million a second and worker\n", bytes, 1e-6 / once);
    else
      std::printf("ps-lite/%s/%zu  %.4g GB/s a worker\n", name, bytes, static_cast<double>(bytes) / once / 1e9);
    std::fflush(stdout);
  };
  measure("latency", 4096, 1, false, 200, 1);
  for (const bool pulls : {false, true}) {
    const char* const name = pulls ? "pull" : "push";
    measure(name, 4096, 64, pulls, 5, 5000);
    measure(name, std::size_t{1} << 20, 8, pulls, 5, 100);
    measure(name, std::size_t{16} << 20, 2, pulls, 5, 10);
  }
  measure("rate", 64, 64, false, 5, 10000);
}

void count() {
  constexpr int samples = 4000;
  constexpr int batch = 32;
  ps::KVWorker<float> kv(0, 0);
  std::printf("begins %d\n", ps::MyRank());
  std::fflush(stdout);
  for (int used = 0; used < samples; used += batch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(batch));
    kv.Wait(kv.Push({0}, {static_cast<float>(batch)}));
  }
  std::vector<float> sum;
  kv.Wait(kv.Pull({0}, &sum));
  std::printf("worker %d has used its samples; %.0f of %d in all\n", ps::MyRank(), sum[0], samples * ps::NumWorkers());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  adds = mode != "discard";
  ps::Start(0);
  ps::KVServer<float>* server = nullptr;
  if (ps::IsServer()) {
    server = new ps::KVServer<float>(0);
    server->set_request_handle(handle);
    ps::RegisterExitCallback([server] { delete server; });
  }
  if (ps::IsWorker()) mode == "count" ? count() : work();
  ps::Finalize(0, true);
}
