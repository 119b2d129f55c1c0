#include "flight_record.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mutex>

#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

namespace muster::inline v0::detail {
namespace {

constinit std::atomic<std::uint32_t> asked_for{0};
constinit std::atomic<bool> has_folder{false};

// Ranks may be threads.
struct place {
  std::mutex mutex;
  std::string folder;
};
place& records() {
  static place made;
  return made;
}

void on_signal(int) { asked_for.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

void set_flight_record_folder(const std::string& folder) {
  const std::lock_guard held(records().mutex);
  records().folder = folder;
  has_folder = !folder.empty();
  struct sigaction present {};
  if (folder.empty() || ::sigaction(SIGUSR2, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) return;
  present.sa_handler = &on_signal;
  present.sa_flags = SA_RESTART;
  (void)::sigaction(SIGUSR2, &present, nullptr);
}

bool has_flight_record_folder() noexcept { return has_folder.load(std::memory_order_relaxed); }

std::uint32_t flight_records_asked_for() noexcept { return asked_for.load(std::memory_order_relaxed); }

void write_flight_record(int rank, const std::string& text) noexcept {
  try {
    const std::lock_guard held(records().mutex);
    const auto process = std::to_string(::getpid());
    write_atomically(records().folder + "/" + process + "-" + std::to_string(rank) + ".record",
                     "muster-flight-record 1\nprocess " + process + "\n" + text);
  } catch (const std::exception& failed) {
    log(log_level::warning, std::string("the flight record was not written: ") + failed.what());
  }
}

}  // namespace muster::inline v0::detail
