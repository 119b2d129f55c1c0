#pragma once

#include <muster/train/parameter_server_backend.hpp>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include <muster/comm/transports/threads.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace detail {
// Numbers of the tables of a training's job.
inline constexpr std::uint32_t parameters = 0;
inline constexpr std::uint32_t order = 1;

inline constexpr auto retry_interval = std::chrono::milliseconds(4);

MUSTER_INLINE parameter_server_backend::parameter_server_backend(
    context& ctx, arena& tensors, std::string update, std::function<void(std::size_t, std::span<float>)> initial_values,
    bool sparse, std::vector<compared_property> properties)
    : arena_(tensors),
      sparse_(sparse),
      assigns_(!sparse && !initial_values),
      job_(ctx, ctx.world(),
           [&] {
             auto options = ps::chosen_options(ctx.configuration(), {{.name = "parameters",
                                                                      .size = sparse ? 0 : tensors.parameters().size(),
                                                                      .update = std::move(update),
                                                                      .initial_values = std::move(initial_values)},
                                                                     {.name = "order", .leases = true}});
             options.properties = std::move(properties);
             return options;
           }()),
      workers_(ctx.world().split(job_.is_server() ? 1 : 0)),
      alone_(make_self_transport(), ctx.world().settings()) {}

MUSTER_INLINE const ps::lease& parameter_server_backend::next_lease() {
  using kind = ps::lease::kind;
  auto& tables = job_.tables();
  const scoped_event waiting(activity::aggregate, "lease", 0);
  for (trained_ = 0;;) {
    lease_ = tables.next_lease(order);
    const bool concerns_first =
        lease_.outcome == kind::unknown || lease_.outcome == kind::save || lease_.outcome == kind::last;
    if (lease_.outcome == kind::over) ended_first_ = false;  // the first worker was another worker
    if (lease_.outcome != kind::later && (!concerns_first || is_first())) return lease_;
    // The other workers may train for long, or die. While this worker makes progress on its connection to the servers,
    // the servers detect the death of a worker, so the wait ends.
    for (const auto until = clock::now() + retry_interval; clock::now() < until;) {
      tables.progress();
      std::this_thread::sleep_for(retry_interval / 10);
    }
  }
}

MUSTER_INLINE std::optional<ps::saved_tables> parameter_server_backend::begin(const std::string& folder,
                                                                              ps::order_plan plan) {
  auto& tables = job_.tables();
  const auto before = tables.bytes_pushed();
  std::optional<ps::saved_tables> saved;
  if (!folder.empty()) saved = ps::load_tables(job_, alone_, folder);
  if (!saved && !sparse_) assign_initial();
  tables.flush();
  if (saved) {
    plan.from = saved->position.data;
    plan.steps = saved->position.steps;
  }
  tables.begin_order(order, plan, saved ? std::span<const ps::lease>(saved->left) : std::span<const ps::lease>());
  assigned_ += tables.bytes_pushed() - before;
  return saved;
}

MUSTER_INLINE void parameter_server_backend::assign_initial() {
  const auto values = std::as_const(arena_).parameters();
  if (assigns_) return job_.tables().assign(parameters, values);
  if (std::ranges::all_of(values, [](float value) { return value == 0; })) return;
  throw configuration_error(
      "the parameters were written after the training was made (the servers compute their initial values by "
      "arena::initialise); write them before, or by initialise alone");
}

MUSTER_INLINE void parameter_server_backend::save(const std::string& folder) {
  try {
    ps::save_tables(job_, alone_, folder, {.steps = lease_.steps, .data = lease_.from});
    unsaved_.clear();
  } catch (const configuration_error& failed) {
    unsaved_ = failed.what();
    log(log_level::warning, "the tables were not saved: " + unsaved_ + "; the earlier tables remain");
  }
  job_.tables().confirm_save(order, lease_.steps);
}

MUSTER_INLINE void parameter_server_backend::confirm_end() {
  ended_first_ = true;
  job_.tables().confirm_end(order);
}

// The most loaded server limits the workers. A server with less than half of its time in use can serve twice as many.
MUSTER_INLINE std::string parameter_server_backend::load_report() {
  const auto loads = job_.tables().server_loads();
  if (loads.empty()) return {};
  double busy = 0, links = 0, most = 0;
  for (const auto& load : loads) {
    busy += load.busy / static_cast<double>(loads.size());
    links += load.links / static_cast<double>(loads.size());
    most = std::max(most, load.busy + load.links);
  }
  return printed(
      "servers were busy for %.0f %% of the time, their links for %.0f %% (the most loaded server and its "
      "links for %.0f %%); to train faster, add %s",
      100 * busy, 100 * links, 100 * most, most < 0.5 ? "workers" : "servers");
}

MUSTER_INLINE void parameter_server_backend::require_saved() const {
  if (!unsaved_.empty()) throw configuration_error(unsaved_);
}

MUSTER_INLINE void parameter_server_backend::evaluate(const std::function<void()>& f) {
  std::exception_ptr failed;
  ended_first_ = is_first();  // while another thread reads the shard map
  {
    const std::jthread keep_alive([&](const std::stop_token& stop) {
      try {
        for (std::unique_lock lock(mutex_); !stop.stop_requested();) {
          job_.tables().progress();
          evaluated_.wait_for(lock, stop, 10 * retry_interval, [] { return false; });
        }
      } catch (const configuration_error&) {  // thrown for an MPI that only one thread may use; a rejection is thrown
                                              // again by the next call
      } catch (...) {
        failed = std::current_exception();
      }
    });
    f();
  }
  ended_first_.reset();
  if (failed) std::rethrow_exception(failed);
}

MUSTER_INLINE void parameter_server_backend::pull(std::span<const std::uint64_t> elements) {
  const std::lock_guard lock(mutex_);
  const auto values = arena_.parameters();
  const auto bytes = sparse_ ? elements.size() * sizeof(float) : values.size_bytes();
  const scoped_event waiting(activity::aggregate, "pull", 0);
  const scoped_event measured(activity::communication, "pull", bytes);
  if (!sparse_) return job_.tables().pull(parameters, values);
  elements_.assign(elements.begin(), elements.end());
  rows_.resize(elements_.size());
  job_.tables().pull(parameters, elements_, rows_);
  for (std::size_t k = 0; k < elements_.size(); ++k) values[elements_[k]] = rows_[k];
}

// The destructor of the pending push copies the values that the servers have not acknowledged, which are at most as
// large as the window. So the next step need not wait, and no second copy of all gradients exists.
MUSTER_INLINE void parameter_server_backend::push(double learning_rate) {
  const ps::push_options options{.scale = static_cast<float>(learning_rate), .place = {lease_, trained_}};
  const auto gradients = arena_.gradients();
  if (!sparse_) {
    (void)job_.tables().push_async(parameters, gradients, options);
    return;
  }
  for (std::size_t k = 0; k < elements_.size(); ++k) rows_[k] = std::exchange(gradients[elements_[k]], 0.0f);
  (void)job_.tables().push_async(parameters, elements_, std::span(rows_).first(elements_.size()), options);
  elements_.clear();
}

}}}  // namespace muster::v0::detail
