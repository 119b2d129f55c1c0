// Work that reports its progress from another thread.
#pragma once

#include <functional>
#include <future>
#include <string>
#include <system_error>
#include <type_traits>

#include <muster/core/clock.hpp>
#include <muster/core/progress.hpp>
#include <muster/core/text.hpp>

/// Runs `work` on another thread, and shows `text` with the elapsed time until the work ends. `share`, if it is given,
/// returns the finished share of the work, from 0 to 1, from which the remaining time follows. Runs `work` on the
/// calling thread, without a report, when no thread can be started.
template <class Work>
auto done_visibly(const std::string& text, const Work& work, const std::function<double()>& share = {}) {
  muster::progress_line progress;
  const auto start = muster::clock::now();
  std::future<std::invoke_result_t<const Work&>> result;
  try {
    result = std::async(std::launch::async, std::cref(work));
  } catch (const std::system_error&) {  // the system refuses a thread
    return work();
  }
  while (result.wait_for(muster::seconds(0.1)) != std::future_status::ready) {
    if (!progress.is_due()) continue;
    const double spent = muster::seconds_since(start), done = share ? share() : 0;
    const std::string left = done > 0 ? muster::detail::printed(", %.0f %%, ", 100 * done) +
                                            muster::detail::duration_text(spent / done * (1 - done)) + " to go"
                                      : "";
    progress.update(text + ", " + muster::detail::duration_text(spent) + left);
  }
  progress.clear();
  return result.get();
}
