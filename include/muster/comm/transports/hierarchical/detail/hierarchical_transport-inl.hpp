#pragma once

#include <muster/comm/transports/hierarchical/hierarchical_transport.hpp>

#include <cstring>
#include <utility>

#include <muster/comm/algorithms/allreduce_by.hpp>
#include <muster/comm/algorithms/chain.hpp>
#include <muster/comm/comm_timing.hpp>
#include <muster/comm/transports/hierarchical/connect_hierarchical.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline collective_call step_of(const collective_call& call) {
  collective_call step = call;
  step.step_of = &call.signature();
  return step;
}

MUSTER_INLINE hierarchical_transport::hierarchical_transport(std::unique_ptr<transport> network,
                                                             std::unique_ptr<shm_transport> host_transport,
                                                             host_map hosts)
    : transport_decorator(std::move(network)), host_transport_(std::move(host_transport)), hosts_(std::move(hosts)) {
  if (host_transport_) host_transport_->set_reported_ranks(hosts_.neighbours(rank()));
}

MUSTER_INLINE transport_abilities hierarchical_transport::abilities() const {
  if (!hosts_.all_alone()) return hierarchical_abilities(inner().abilities());
  auto result = inner().abilities();
  result.name = "hierarchical";
  return result;
}

MUSTER_INLINE bool hierarchical_transport::native(const collective_call& call, request& req) {
  if (hosts_.all_alone()) return inner().native(call, req);
  if (hosts_.one_host()) return host_transport_->native(call, req);
  const body_type begin = body_of(call.kind);
  if (begin == nullptr || call.reduce.folds_at_once(size())) return false;  // a host has only some of the ranks
  const int me = rank();
  const bool rooted = call.kind == collective::reduce || call.kind == collective::broadcast;
  bool exchanges = true;
  if (rooted && representative_for(call.root) == me) {
    network_ranks_ = hosts_.across(0, call.root);
  } else if (!rooted && local_rank() < rails_for(call.count * call.element_size)) {
    network_ranks_ = hosts_.across(local_rank());
  } else {
    network_ranks_ = {me};
    exchanges = false;
  }
  waits_on_host_ = false;
  req.owner = this;
  ctx_.emplace(inner(), pool_, scratch_, call.signature(), network_ranks_, exchanges ? hosts_.host(me) : 0);
  body_ = begin(*ctx_, *this, call);
  ctx_->start(body_.handle());
  test(req);
  return true;
}

MUSTER_INLINE bool hierarchical_transport::test(request& req) {
  const auto* const owner = req.owning_transport();
  if (owner == nullptr) return true;
  if (owner == host_transport_.get()) return host_transport_->test(req);
  if (owner != this) return inner().test(req);
  ctx_->advance();
  if (!body_.finished()) return false;
  const auto failure = body_.failure();
  body_.reset();
  if (failure) std::rethrow_exception(failure);
  req.owner = nullptr;
  return true;
}

MUSTER_INLINE void hierarchical_transport::cancel(request& req) noexcept {
  req.owner = nullptr;
  body_.reset();  // cancels the requests of both levels
  waits_on_host_ = false;
}

// Reports this rank's end through shared memory as well: peers on the host detect there that the process has
// ended, and then look for a reason. Peers ignore the second copy of the message.
MUSTER_INLINE void hierarchical_transport::notify(int peer, const control_message& message) {
  const bool is_on_host = host_transport_ && hosts_.host(peer) == hosts_.host(rank());
  if (is_on_host && message.type != control_message::kind::position)
    host_transport_->notify(hosts_.local_rank(peer), message);
  inner().notify(peer, message);
}

MUSTER_INLINE bool hierarchical_transport::poll(control_message& message) {
  if (inner().poll(message)) return true;
  if (!host_transport_ || !host_transport_->poll(message)) return false;
  message.origin = hosts_.neighbours(rank())[static_cast<std::size_t>(message.origin)];
  return true;
}

MUSTER_INLINE void hierarchical_transport::pause(clock::time_point deadline) {
  if (!host_transport_) return inner().pause(deadline);
  const auto next_check = std::min(deadline, clock::now() + transport_timing::death_poll);
  if (waits_on_host_ || hosts_.one_host()) {
    host_transport_->pause(next_check);
  } else {
    inner().pause(next_check);
    host_transport_->check_for_ended_peers();
  }
}

MUSTER_INLINE std::vector<int> hierarchical_transport::members_on_host(std::span<const int> members) const {
  std::vector<int> local_members;
  for (const int member : members) {
    if (hosts_.host(member) == hosts_.host(rank())) local_members.push_back(hosts_.local_rank(member));
  }
  return local_members;
}

// The transports between hosts, tcp and mpi, need no `prepare` before a subgroup.
MUSTER_INLINE std::uint64_t hierarchical_transport::prepare(std::span<const int> members) {
  const auto local_members = members_on_host(members);
  return local_members.size() > 1 ? host_transport_->prepare(local_members) : 0;
}

MUSTER_INLINE std::unique_ptr<transport> hierarchical_transport::subgroup(const subgroup_call& call) {
  std::vector<std::uint64_t> host_of_member;
  for (const int member : call.members) host_of_member.push_back(static_cast<std::uint64_t>(hosts_.host(member)));
  auto network = inner().subgroup(call);
  std::vector<std::uint64_t> prepared;
  for (const int neighbour : hosts_.neighbours(rank()))
    prepared.push_back(call.prepared[static_cast<std::size_t>(neighbour)]);
  const auto local_members = members_on_host(call.members);
  auto host_group = local_members.size() > 1
                        ? host_transport_->make_subgroup({local_members, call.id, prepared, call.deadline})
                        : nullptr;
  return std::make_unique<hierarchical_transport>(std::move(network), std::move(host_group), host_map(host_of_member));
}

// ---- collectives ----

MUSTER_INLINE int hierarchical_transport::representative_for(int root) const {
  return hosts_.host(root) == hosts_.host(rank()) ? root : hosts_.neighbours(rank()).front();
}

MUSTER_INLINE hierarchical_transport::body_type hierarchical_transport::body_of(collective kind) noexcept {
  switch (kind) {
    case collective::allreduce:
      return &allreduce;
    case collective::reduce:
      return &reduce;
    case collective::broadcast:
      return &broadcast;
    case collective::barrier:
    case collective::finish:
      return &barrier;
    default:
      return nullptr;
  }
}

MUSTER_INLINE task hierarchical_transport::within_host(collective_context& ctx, hierarchical_transport& self,
                                                       const collective_call& inner) {
  if (!self.host_transport_) co_return;
  request req;
  self.waits_on_host_ = true;
  if (!self.host_transport_->native(inner, req)) {
    throw configuration_error("shared memory does not implement " + std::string(to_string(inner.kind)) +
                              " (programming error)");
  }
  co_await ctx.until([&] { return self.host_transport_->test(req); });
  self.waits_on_host_ = false;
}

MUSTER_INLINE task hierarchical_transport::within_host_by_rails(collective_context& ctx, hierarchical_transport& self,
                                                                const collective_call& call, int rails, bool combines) {
  const blocks in{const_cast<std::byte*>(call.in), call.count, call.element_size, rails};
  const blocks out{call.out, call.count, call.element_size, rails};
  collective_call step = call;
  if (rails == self.ranks_on_host()) {
    step.kind = combines ? collective::reduce_scatter : collective::allgather;
    std::byte* const own = out.at(self.local_rank()).data();
    if (combines)
      step.out = own;
    else
      step.in = own;
    co_await within_host(ctx, self, step);
  } else {
    step.kind = combines ? collective::reduce : collective::broadcast;
    for (step.root = 0; step.root < rails; ++step.root) {
      step.out = out.at(step.root).data();
      step.in = combines ? in.at(step.root).data() : step.out;
      step.count = out.at(step.root).size() / call.element_size;
      co_await within_host(ctx, self, step);
    }
  }
}

MUSTER_INLINE task hierarchical_transport::allreduce(collective_context& ctx, hierarchical_transport& self,
                                                     const collective_call& call) {
  const int rails = self.rails_for(call.count * call.element_size);
  collective_call work = step_of(call);
  work.reduce = call.reduce.unfinished();  // finished after all ranks are combined, not after the ranks of a host are
  if (!self.host_transport_ && call.in != call.out && call.count > 0)
    std::memcpy(call.out, call.in, call.count * call.element_size);
  co_await within_host_by_rails(ctx, self, work, rails, true);
  if (self.local_rank() < rails) {
    const auto mine = blocks{call.out, call.count, call.element_size, rails}.at(self.local_rank());
    co_await allreduce_by(ctx, ctx.choose(collective::allreduce, mine.size()), mine.data(),
                          mine.size() / call.element_size, work.reduce);
    call.reduce.finish(mine.data(), mine.size(), self.size());
  }
  co_await within_host_by_rails(ctx, self, work, rails, false);
}

MUSTER_INLINE task hierarchical_transport::reduce(collective_context& ctx, hierarchical_transport& self,
                                                  const collective_call& call) {
  const std::size_t bytes = call.count * call.element_size;
  const int representative = self.representative_for(call.root);
  const bool is_representative = representative == self.rank();
  std::byte* const partial = self.rank() == call.root ? call.out : is_representative ? ctx.scratch(bytes) : nullptr;
  collective_call step = step_of(call);
  step.reduce = call.reduce.unfinished();
  step.root = self.hosts_.local_rank(representative);
  step.out = partial;
  if (!self.host_transport_ && bytes > 0 && partial != call.in) std::memcpy(partial, call.in, bytes);
  co_await within_host(ctx, self, step);
  if (!is_representative) co_return;
  co_await tree_reduce(ctx, partial, bytes, self.hosts_.host(call.root), step.reduce);
  if (self.rank() == call.root) call.reduce.finish(partial, bytes, self.size());
}

MUSTER_INLINE task hierarchical_transport::broadcast(collective_context& ctx, hierarchical_transport& self,
                                                     const collective_call& call) {
  const std::size_t bytes = call.count * call.element_size;
  const int representative = self.representative_for(call.root);
  if (representative == self.rank()) {
    const int root_host = self.hosts_.host(call.root);
    if (ctx.choose(collective::broadcast, bytes) == algorithm::chain) {
      co_await chain_broadcast(ctx, call.out, bytes, root_host);
    } else {
      co_await tree_broadcast(ctx, call.out, bytes, root_host);
    }
  }
  collective_call step = step_of(call);
  step.in = call.out;
  step.root = self.hosts_.local_rank(representative);
  co_await within_host(ctx, self, step);
}

MUSTER_INLINE task hierarchical_transport::barrier(collective_context& ctx, hierarchical_transport& self,
                                                   const collective_call& call) {
  collective_call step = step_of(call);
  step.kind = collective::barrier;
  co_await within_host(ctx, self, step);
  co_await dissemination_barrier(ctx);
  co_await within_host(ctx, self, step);
}

}}}  // namespace muster::v0::detail
