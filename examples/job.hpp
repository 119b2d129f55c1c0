// The ranks of an example: those it was started with, or ranks that come and go.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include <muster/comm/context.hpp>
#include <muster/core/log.hpp>
#include <muster/elastic/session.hpp>
#ifdef MUSTER_HAS_TCP
#include <muster/elastic/elastic.hpp>
#endif

namespace examples {

/// Ranks that the job was started with.
inline int ranks_of(const muster::context& context) {
  return context.elastic() ? context.launcher().size : context.ranks();
}

/// "4 ranks", "1 rank".
inline std::string count_of(int count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what) + (count == 1 ? "" : "s");
}

/// As a header names them: "4 ranks (shm)".
inline std::string describe_ranks(const muster::context& context, const muster::group& world) {
  return count_of(ranks_of(context), "rank") + " (" +
         (context.elastic() ? "elastic" : std::string(world.abilities().name)) + ")";
}

/// What the learning rate is multiplied by where each rank keeps its batch and there are more or fewer than `at_start`
/// (linear scaling: Goyal et al. 2017, https://arxiv.org/abs/1706.02677).
inline double growth(const muster::step& step, int at_start) {
  return static_cast<double>(step.group().size()) / at_start;
}

/// Collective: what ranks do when they meet. `joined` says that this one came to a job that was under way.
using meeting = std::function<void(muster::group& ranks, bool joined)>;

/// A session for the job as it was started; ranks meet at once, or whenever others come or go.
inline muster::session open_session(muster::context& context, muster::group& world, const meeting& meet) {
#ifdef MUSTER_HAS_TCP
  if (context.elastic()) {
    return muster::elastic::session(context,
                                    {.on_rebuild = [meet](muster::group& ranks, const muster::elastic::change& what) {
                                      meet(ranks, what.generation > 1 && what.rank_before < 0);
                                    }});
  }
#else
  (void)context;
#endif
  meet(world, false);
  return muster::fixed_session(world);
}

/// Calls `train`, and `save` on one of those ranks that are left when so many are gone that the job ends.
template <class Train, class Save>
void train_or_save(Train&& train, Save&& save) {
#ifdef MUSTER_HAS_TCP
  try {
    train();
  } catch (const muster::elastic::departure& gone) {
    try {
      if (gone.should_save()) save();
    } catch (const std::exception& failed) {  // no reason to hide why the job ended
      muster::log(muster::log_level::error, std::string("the state could not be saved: ") + failed.what());
    }
    throw;
  }
#else
  (void)save;
  train();
#endif
}

}  // namespace examples
