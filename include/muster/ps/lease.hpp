// Leases: the servers of a job assign the samples of a training to workers in a fixed order.
#pragma once

#include <cstdint>

#include <muster/data/batch_shard.hpp>
#include <muster/data/cursor.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// The order of batches that a table of leases assigns, see `client::begin_order`.
struct order_plan {
  cursor from{};            ///< the first batch
  std::uint64_t steps = 0;  ///< number of batches before `from`

  std::uint64_t epochs_limit = 0;  ///< the order ends after this many epochs; 0: no such limit
  std::uint64_t steps_limit = 0;   ///< the order ends after this many batches; 0: no such limit
  /// After every so many epochs or batches, and at the end, the servers grant no lease until `client::confirm_save` is
  /// called. At that moment the tables contain exactly the pushes from batches before that place. 0: never.
  std::uint64_t epochs_to_save = 0;
  std::uint64_t steps_to_save = 0;
};

/// An assignment of consecutive batches to one worker: the worker trains the same part in every batch, one batch in
/// each clock. If the worker leaves the job, its unfinished batches are leased to other workers.
struct lease {
  /// `unknown`, `save` and `last` are sent to every worker that requests a lease at that time. Only the worker for
  /// which `client::is_first_worker` returns true acts on these kinds. The other workers request again.
  enum class kind : std::uint32_t {
    granted,  ///< assigned to the requesting worker
    unknown,  ///< no worker has started the order yet: call `client::begin_order`
    later,    ///< no lease is available now, but workers that hold leases may die: request again later
    save,     ///< all pushes before `from` are applied: save the tables, then call `client::confirm_save`
    last,     ///< all batches are applied: do the final work, then call `client::confirm_end`
    over      ///< all batches are applied, and no work is left
  };
  kind outcome = kind::later;
  std::uint32_t part = 0;     ///< index of the part, below `parts`, in each batch
  std::uint32_t parts = 1;    ///< number of workers when the batches were assigned
  std::uint32_t batches = 0;  ///< number of batches, all in one epoch
  std::uint64_t clock = 0;    ///< the worker's clock at its first batch; otherwise the clock at which it continues
  /// Number of batches before the first batch, over all epochs: equal numbers identify equal samples.
  std::uint64_t steps = 0;
  std::uint64_t settled = 0;  ///< every batch below this number is trained and applied
  cursor from{};              ///< position of the first batch

  /// Returns the part in the form that a loader accepts.
  [[nodiscard]] batch_shard shard() const noexcept { return {static_cast<int>(part), static_cast<int>(parts)}; }
};

/// The part of a batch from which a push was computed. A server applies only one push for each place, from whichever
/// worker.
struct batch_place {
  std::uint64_t number = 0;   ///< 0: the push belongs to no lease
  std::uint64_t settled = 0;  ///< every push with a smaller number is applied at all servers

  /// Maximum number of parts of a batch.
  static constexpr std::uint64_t most_parts = 4096;
  /// Constructs the place of pushes that belong to no lease.
  batch_place() = default;
  /// Constructs the place of the lease's part in its batch number `batch`, from 0.
  batch_place(const lease& granted, std::uint64_t batch) noexcept
      : number((granted.steps + batch + 1) * most_parts + granted.part), settled((granted.settled + 1) * most_parts) {}
};

}}}  // namespace muster::v0::ps

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/ps/detail/definitions.hpp>
#endif
