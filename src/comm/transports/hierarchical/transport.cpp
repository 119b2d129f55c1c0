#include "transport.hpp"

#include <cstring>
#include <utility>

#include <muster/comm/algorithms/allreduce.hpp>
#include <muster/comm/algorithms/chain.hpp>
#include <muster/core/error.hpp>

#include "../../timing.hpp"
#include "connect.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

collective_call step_of(const collective_call& call) {
  collective_call step = call;
  step.step_of = &call.signature();
  return step;
}

}  // namespace

hierarchical_transport::hierarchical_transport(std::unique_ptr<transport> between,
                                               std::unique_ptr<shm_transport> within, host_map hosts)
    : transport_decorator(std::move(between)), within_(std::move(within)), hosts_(std::move(hosts)) {
  if (within_) within_->name(hosts_.neighbours(rank()));
}

transport_abilities hierarchical_transport::abilities() const {
  if (!hosts_.all_alone()) return hierarchical_abilities(inner().abilities());
  auto made = inner().abilities();
  made.name = "hierarchical";
  return made;
}

bool hierarchical_transport::native(const collective_call& call, request& r) {
  if (hosts_.all_alone()) return inner().native(call, r);
  if (hosts_.one_host()) return within_->native(call, r);
  const body_type begin = body_of(call.kind);
  if (begin == nullptr) return false;
  const int me = rank();
  const bool rooted = call.kind == collective::reduce || call.kind == collective::broadcast;
  bool talks = true;
  if (rooted && speaker_for(call.root) == me) {
    across_ = hosts_.across(0, call.root);
  } else if (!rooted && place() < rails_for(call.count * call.element_size)) {
    across_ = hosts_.across(place());
  } else {
    across_ = {me};
    talks = false;
  }
  inside_ = false;
  r.owner = this;
  steps_.emplace(inner(), pool_, scratch_, call.signature(), across_, talks ? hosts_.host(me) : 0);
  body_ = begin(*steps_, *this, call);
  steps_->start(body_.handle());
  test(r);
  return true;
}

bool hierarchical_transport::test(request& r) {
  const auto* const owner = r.held_by();
  if (owner == nullptr) return true;
  if (owner == within_.get()) return within_->test(r);
  if (owner != this) return inner().test(r);
  steps_->advance();
  if (!body_.finished()) return false;
  const auto failure = body_.failure();
  body_.reset();
  if (failure) std::rethrow_exception(failure);
  r.owner = nullptr;
  return true;
}

void hierarchical_transport::cancel(request& r) noexcept {
  r.owner = nullptr;
  body_.reset();  // takes back what it has started on either level
  inside_ = false;
}

// How this rank ends is said through memory, too: there the others see that its process has ended, and look whether it
// said why. What they hear twice they take once.
void hierarchical_transport::notify(int peer, const control_message& message) {
  const bool is_here = within_ && hosts_.host(peer) == hosts_.host(rank());
  if (is_here && message.what != control_message::kind::position) within_->notify(hosts_.place(peer), message);
  inner().notify(peer, message);
}

bool hierarchical_transport::poll(control_message& message) {
  if (inner().poll(message)) return true;
  if (!within_ || !within_->poll(message)) return false;
  message.origin = hosts_.neighbours(rank())[static_cast<std::size_t>(message.origin)];
  return true;
}

void hierarchical_transport::pause(clock::time_point until) {
  if (!within_) return inner().pause(until);
  const auto soon = std::min(until, clock::now() + transport_timing::death_poll);
  if (inside_ || hosts_.one_host()) {
    within_->pause(soon);
  } else {
    inner().pause(soon);
    within_->look_after_peers();
  }
}

std::vector<int> hierarchical_transport::members_here(std::span<const int> members) const {
  std::vector<int> here;
  for (const int member : members) {
    if (hosts_.host(member) == hosts_.host(rank())) here.push_back(hosts_.place(member));
  }
  return here;
}

// What goes between hosts has nothing to prepare: neither tcp nor mpi.
std::uint64_t hierarchical_transport::prepare(std::span<const int> members) {
  const auto here = members_here(members);
  return here.size() > 1 ? within_->prepare(here) : 0;
}

std::unique_ptr<transport> hierarchical_transport::subgroup(const subgroup_call& some) {
  std::vector<std::uint64_t> host_of_member;
  for (const int member : some.members) host_of_member.push_back(static_cast<std::uint64_t>(hosts_.host(member)));
  auto between = inner().subgroup(some);
  std::vector<std::uint64_t> words;
  for (const int rank_here : hosts_.neighbours(rank()))
    words.push_back(some.words[static_cast<std::size_t>(rank_here)]);
  const auto here = members_here(some.members);
  auto within = here.size() > 1 ? within_->make_subgroup({here, some.id, words, some.until}) : nullptr;
  return std::make_unique<hierarchical_transport>(std::move(between), std::move(within), host_map(host_of_member));
}

// ---- collectives ----

int hierarchical_transport::speaker_for(int root) const {
  return hosts_.host(root) == hosts_.host(rank()) ? root : hosts_.neighbours(rank()).front();
}

hierarchical_transport::body_type hierarchical_transport::body_of(collective kind) noexcept {
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

task hierarchical_transport::within(executor& f, hierarchical_transport& self, const collective_call& step) {
  if (!self.within_) co_return;
  request r;
  self.inside_ = true;
  if (!self.within_->native(step, r)) {
    throw configuration_error("shared memory does not do a " + std::string(to_string(step.kind)) +
                              " (programming error)");
  }
  co_await f.until([&] { return self.within_->test(r); });
  self.inside_ = false;
}

// Combines: afterwards the ranks of number 0 .. rails-1 of this host hold their block, of `rails`, combined over the
// host. Otherwise the inverse: the blocks reach all ranks of this host.
task hierarchical_transport::within_by_rails(executor& f, hierarchical_transport& self, const collective_call& call,
                                             int rails, bool combines) {
  const blocks in{const_cast<std::byte*>(call.in), call.count, call.element_size, rails};
  const blocks out{call.out, call.count, call.element_size, rails};
  collective_call step = call;
  if (rails == self.ranks_here()) {
    step.kind = combines ? collective::reduce_scatter : collective::allgather;
    std::byte* const own = out.at(self.place()).data();
    if (combines)
      step.out = own;
    else
      step.in = own;
    co_await within(f, self, step);
  } else {
    step.kind = combines ? collective::reduce : collective::broadcast;
    for (step.root = 0; step.root < rails; ++step.root) {
      step.out = out.at(step.root).data();
      step.in = combines ? in.at(step.root).data() : step.out;
      step.count = out.at(step.root).size() / call.element_size;
      co_await within(f, self, step);
    }
  }
}

task hierarchical_transport::allreduce(executor& f, hierarchical_transport& self, const collective_call& call) {
  const int rails = self.rails_for(call.count * call.element_size);
  collective_call work = step_of(call);
  work.reduce = call.reduce.unfinished();  // finished over all ranks, not over those of a host
  if (!self.within_ && call.in != call.out && call.count > 0)
    std::memcpy(call.out, call.in, call.count * call.element_size);
  co_await within_by_rails(f, self, work, rails, true);
  if (self.place() < rails) {
    const auto mine = blocks{call.out, call.count, call.element_size, rails}.at(self.place());
    co_await allreduce_by(f, f.choose(collective::allreduce, mine.size()), mine.data(), mine.size() / call.element_size,
                          work.reduce);
    call.reduce.finish(mine.data(), mine.size(), self.size());
  }
  co_await within_by_rails(f, self, work, rails, false);
}

task hierarchical_transport::reduce(executor& f, hierarchical_transport& self, const collective_call& call) {
  const std::size_t bytes = call.count * call.element_size;
  const int speaker = self.speaker_for(call.root);
  const bool speaks = speaker == self.rank();
  std::byte* const held = self.rank() == call.root ? call.out : speaks ? f.scratch(bytes) : nullptr;
  collective_call step = step_of(call);
  step.reduce = call.reduce.unfinished();
  step.root = self.hosts_.place(speaker);
  step.out = held;
  if (!self.within_ && bytes > 0 && held != call.in) std::memcpy(held, call.in, bytes);
  co_await within(f, self, step);
  if (!speaks) co_return;
  co_await tree_reduce(f, held, bytes, self.hosts_.host(call.root), step.reduce);
  if (self.rank() == call.root) call.reduce.finish(held, bytes, self.size());
}

task hierarchical_transport::broadcast(executor& f, hierarchical_transport& self, const collective_call& call) {
  const std::size_t bytes = call.count * call.element_size;
  const int speaker = self.speaker_for(call.root);
  if (speaker == self.rank()) {
    const int first = self.hosts_.host(call.root);
    if (f.choose(collective::broadcast, bytes) == algorithm::chain) {
      co_await chain_broadcast(f, call.out, bytes, first);
    } else {
      co_await tree_broadcast(f, call.out, bytes, first);
    }
  }
  collective_call step = step_of(call);
  step.in = call.out;
  step.root = self.hosts_.place(speaker);
  co_await within(f, self, step);
}

task hierarchical_transport::barrier(executor& f, hierarchical_transport& self, const collective_call& call) {
  collective_call step = step_of(call);
  step.kind = collective::barrier;
  co_await within(f, self, step);
  co_await dissemination_barrier(f);
  co_await within(f, self, step);
}

}}}  // namespace muster::v0::detail
