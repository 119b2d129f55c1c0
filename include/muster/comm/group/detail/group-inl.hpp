#pragma once

#include <muster/comm/group.hpp>

#include <algorithm>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/group/group_state.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/events.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {

MUSTER_INLINE group::group(std::unique_ptr<muster::transport> transport, const group_settings& settings)
    : state_(std::make_shared<detail::group_state>(std::move(transport), settings)) {}
MUSTER_INLINE group::group(std::shared_ptr<detail::group_state> state) noexcept : state_(std::move(state)) {}
MUSTER_INLINE group::group(group&&) noexcept = default;
MUSTER_INLINE group& group::operator=(group&&) noexcept = default;
MUSTER_INLINE group::~group() = default;

MUSTER_INLINE int group::rank() const noexcept { return state_->transport->rank(); }
MUSTER_INLINE int group::size() const noexcept { return state_->transport->size(); }
MUSTER_INLINE std::uint64_t group::sequence() const noexcept { return state_->sequence(); }
MUSTER_INLINE const group_settings& group::settings() const noexcept { return state_->settings; }
MUSTER_INLINE void group::set_settings(const group_settings& settings) {
  const auto held = state_->guard();
  state_->configure(settings);
}
MUSTER_INLINE transport_abilities group::abilities() const { return state_->abilities; }
MUSTER_INLINE muster::transport& group::transport() noexcept { return *state_->transport; }
MUSTER_INLINE bool group::failed() const noexcept {
  const auto held = state_->guard();
  return state_->failed();
}
MUSTER_INLINE void group::abort(std::string_view reason, int status) noexcept {
  const auto held = state_->guard();
  state_->abort(reason, status);
}

MUSTER_INLINE algorithm group::chosen(collective kind, std::size_t bytes) const {
  return state_->choose_for(kind, bytes, algorithm::automatic);
}

MUSTER_INLINE group group::duplicate() { return split(0, rank()); }

MUSTER_INLINE group group::split(int color, int key) {
  // Runs a step of the transport. An error of the transport ends the group at every rank.
  const auto run_step = [this](auto step) {
    const auto held = state_->guard();
    try {
      return step(*state_->transport);
    } catch (...) {
      state_->fail(std::current_exception());
      throw;
    }
  };
  const std::uint64_t number = sequence();
  const int mine[2] = {color, key};
  std::vector<int> all(2 * static_cast<std::size_t>(size()));
  allgather(*this, mine, all);

  std::vector<int> members;
  for (int r = 0; color >= 0 && r < size(); ++r) {
    if (all[2 * static_cast<std::size_t>(r)] == color) members.push_back(r);
  }
  const auto key_of = [&](int r) { return all[2 * static_cast<std::size_t>(r) + 1]; };
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return key_of(a) < key_of(b); });
  const std::uint64_t word =
      color < 0 ? 0 : run_step([&](muster::transport& transport) { return transport.prepare(members); });
  std::vector<std::uint64_t> prepared(static_cast<std::size_t>(size()));
  allgather(*this, std::span(&word, 1), prepared);
  if (color < 0) return group(make_self_transport(), settings());

  const std::uint64_t id = digest().add(state_->id).add(number).add(static_cast<std::uint64_t>(color)).value();
  const subgroup_call call{members, id, prepared, deadline_after(settings().timeout)};
  auto child = run_step([&](muster::transport& transport) { return transport.subgroup(call); });
  return group(std::make_shared<detail::group_state>(std::move(child), settings(), state_, id, state_->end));
}

namespace detail {
MUSTER_INLINE void operation_release::operator()(operation_state* done) const noexcept {
  done->~operation_state();
  frame_pool::release(done);
}
}  // namespace detail

MUSTER_INLINE work::work(std::shared_ptr<detail::group_state> group,
                         std::unique_ptr<detail::operation_state, detail::operation_release> op)
    : group_(std::move(group)), operation_(std::move(op)) {}
MUSTER_INLINE work::work(work&&) noexcept = default;
MUSTER_INLINE work& work::operator=(work&& other) noexcept {
  if (this == &other) return *this;
  end();
  operation_ = std::move(other.operation_);
  group_ = std::move(other.group_);
  return *this;
}
MUSTER_INLINE work::~work() { end(); }

MUSTER_INLINE void work::end() noexcept {
  if (!operation_) return;
  const auto held = group_->guard();
  group_->wait(*operation_, clock::time_point::max());
  operation_.reset();  // into the group's pool
}

MUSTER_INLINE bool work::test() {
  if (!operation_) return true;
  const auto held = group_->guard();
  if (!operation_->done) {
    group_->handle_control_messages();
    group_->progress(operation_.get());
    group_->check_deadline(operation_.get());
  }
  if (!operation_->done) return false;
  group_->record_end(*operation_);
  take_result();
  return true;
}

MUSTER_INLINE void work::wait() { wait_for(seconds(1e9)); }

MUSTER_INLINE bool work::wait_for(seconds limit) {
  if (!operation_) return true;
  {
    const scoped_event measured(activity::communication, to_string(operation_->call.kind), 0);
    const auto held = group_->guard();
    if (!group_->wait(*operation_, deadline_after(limit))) return false;
    take_result();
  }
  return true;
}

MUSTER_INLINE void work::take_result() {
  if (event_sink* const sink = current_event_sink(); sink != nullptr && operation_->begun_at != clock::time_point{}) {
    const auto& call = operation_->call;
    sink->record({activity::transfer, to_string(call.kind), operation_->begun_at, operation_->done_at,
                  call.count * call.element_size});
  }
  const auto failure = operation_->failure;
  operation_.reset();
  if (failure) std::rethrow_exception(failure);
}

namespace detail {

MUSTER_INLINE void refuse_reproducible(group& ranks, collective kind, operation op, dtype type) {
  refuse_arguments(&ranks, std::string(to_string(kind)) + ": a " + std::string(to_string(op)) + " of " +
                               std::string(to_string(type)) +
                               " cannot be reproducible (only sum and mean of float16, bfloat16, float and double can, "
                               "in reduce, allreduce and reduce_scatter); choose another operation, or leave the "
                               "option out");
}

MUSTER_INLINE void refuse_arguments(group* ranks, const std::string& text) {
  if (ranks == nullptr) throw configuration_error(text);
  const auto held = ranks->state()->guard();
  ranks->state()->refuse_call(text);
}

MUSTER_INLINE void refuse_size(group* ranks, collective kind, std::string_view buffer_name, std::size_t is,
                               std::size_t required) {
  refuse_arguments(ranks, std::string(to_string(kind)) + ": the " + std::string(buffer_name) + " buffer has " +
                              std::to_string(is) + " elements (the other buffer asks for " + std::to_string(required) +
                              "); give it that size");
}

MUSTER_INLINE void refuse_root(group* ranks, collective kind, int root, int rank_count) {
  refuse_arguments(ranks, std::string(to_string(kind)) + ": the root cannot be rank " + std::to_string(root) +
                              " (the group has ranks 0 to " + std::to_string(rank_count - 1) +
                              "); choose a rank in that range");
}

}  // namespace detail
}}  // namespace muster::v0
