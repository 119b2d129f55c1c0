// A model with its parameters on servers: what a worker of a parameter server's job trains with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/ps/job.hpp>
#include <muster/train/arena.hpp>

namespace muster::inline v0 {

/// The update function of a parameter server's table that does what that optimizer does (see `make_optimizer`), with
/// the learning rate that each push brings as its scale: "nesterov:1,0.9,decay=0.0001" for "nesterov:0.9,decay=1e-4".
/// Throws configuration_error for what servers cannot do: a table has no tensors, so there is no lars and no
/// `decay-of`.
[[nodiscard]] std::string served_update(std::string_view optimizer);

/// The parameters of an arena as a dense table of a job, from one worker's side. Gradients leave while the backward
/// pass goes on, a range of the table at a time:
///
///     muster::ps::job job(context, world, {.tables = {muster::ps_parameters::table(arena, "momentum:0.9")}});
///     muster::ps_parameters served(arena, job);
///     for (...) {
///       served.pull();                     // the parameters as they are now
///       served.begin(learning_rate);
///       ... served.ready(tensor) ...       // as each gradient is written
///       served.end();                      // one clock is done
///     }
///
/// Used by the thread that is the worker; the arena and the job outlive it. Calls wait as long as the job's timeout,
/// and throw what `ps::pending::wait` does.
class ps_parameters {
 public:
  /// The table of such an arena, updated as by that optimizer.
  [[nodiscard]] static ps::table_spec table(const arena& of, std::string_view optimizer,
                                            std::string name = "parameters");

  /// `table` is the number of that table in the job.
  ps_parameters(arena& of, ps::job& job, std::uint32_t table = 0);
  ps_parameters(const ps_parameters&) = delete;
  ps_parameters& operator=(const ps_parameters&) = delete;

  /// The table begins with the arena's parameters: called by one worker, before any pulls.
  void assign();
  /// The arena's parameters become the table's.
  void pull();
  /// A step begins: gradients are zeros, and written by the model from now on.
  void begin(double learning_rate);
  /// The gradient of that tensor of the arena is written, and left alone until the next `begin`.
  void ready(std::size_t tensor);
  /// All gradients are written.
  void end();

 private:
  void push_up_to(std::size_t end);

  arena& arena_;
  ps::client& tables_;
  const ps::table_layout& layout_;
  std::uint32_t table_;
  float rate_ = 0;
  std::vector<bool> written_;  // by tensor
  std::size_t next_ = 0;       // tensors, from the last on, with all gradients written
  std::size_t pushed_ = 0;     // elements
  std::vector<ps::pending> under_way_;
};

}  // namespace muster::inline v0
