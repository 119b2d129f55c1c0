// A job that is put together from several starts: that of a launcher, and servers that are started on their own.
#pragma once

#include <memory>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/bootstrap/store.hpp>
#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace detail {

struct assembled_launch {
  launch_env launch;
  /// Where all met. Rank 0 keeps it open as long as the job, for its word there that the job has begun; others may
  /// close theirs.
  std::unique_ptr<any_store> store;
};

/// The launch that this process is part of: `of_launcher` where nothing else is asked for. With `--remote-servers N`
/// the launcher's ranks are the first, and N processes that were started with `--role server` come behind them in the
/// order in which they arrive: they meet in the store of `--rendezvous`. Collective over all of them then. Throws
/// configuration_error where they cannot meet, or for a server more than the job waits for; timeout_error naming the
/// ranks that did not come by `--timeout`.
[[nodiscard]] assembled_launch assemble_launch(const settings& configuration, const launch_env& of_launcher);

}}}  // namespace muster::v0::detail
