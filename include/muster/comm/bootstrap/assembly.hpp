// A job that is assembled from several starts: the ranks of a launcher, and servers that are started separately.
#pragma once

#include <memory>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/bootstrap/store.hpp>
#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The rank of a process in the assembled job, and the store by which the processes were assembled.
struct assembled_launch {
  launch_env launch;  ///< as from a launcher that had started all processes, remote servers included
  /// The store through which the processes found each other; null without remote servers. Rank 0 keeps the store open
  /// as long as the job, because its entry there shows that the job has begun. Other ranks may close theirs.
  std::unique_ptr<any_store> store;
};

/// Returns the rank and world of this process. Without remote servers they are the launcher's, as in `launcher`. With
/// `--remote-servers N` the launcher's ranks are the first, and N processes that were started with `--role server`
/// follow in the order of their arrival. They find each other through the store of `--rendezvous`. The call is then
/// collective over all these processes. Throws configuration_error when they cannot find each other, or for a server
/// beyond the requested number; timeout_error naming the ranks that have not arrived by `--timeout`.
[[nodiscard]] assembled_launch assemble_launch(const settings& configuration, const launch_env& launcher);

}}}  // namespace muster::v0::detail
