// Jobs with a parameter server whose ranks are threads of a test.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/ps/job.hpp>

#include "comm/ranks.hpp"

namespace ps = muster::ps;

inline void require(bool condition, const char* problem) {
  if (!condition) throw std::runtime_error(problem);
}

inline std::vector<test::fabric> fabrics() {
#ifdef MUSTER_HAS_TCP
  return {test::fabric::threads, test::fabric::shm, test::fabric::tcp};
#else
  return {test::fabric::threads, test::fabric::shm};
#endif
}

/// Runs `work(job, workers)` at every worker, where `workers` is the workers' group, and serves at the other ranks.
inline void run_job(test::fabric over, int workers, const ps::job_options& options,
                    const std::function<void(ps::job&, muster::group&)>& work) {
  const auto store = std::make_shared<muster::memory_store>();
  test::run_ranks(over, workers + options.servers, [&](muster::group& world) {
    ps::job job(world, options, store);
    auto workers_only = world.split(job.is_server() ? 0 : 1);
    if (job.is_server()) return job.serve();
    work(job, workers_only);
    job.finish();
  });
}

inline ps::job_options patient(ps::job_options options) {  // a busy machine with sanitizers is no dead server
  options.server_silence = muster::seconds(20);
  options.timeout = muster::seconds(60);
  return options;
}
