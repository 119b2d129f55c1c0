// A process in an elastic job, independent of its ranks' work: its identity, its part in the membership, and its
// connections to the members of a generation.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/elastic/elastic_settings.hpp>

#include <muster/core/random_bytes.hpp>
#include <muster/elastic/membership/service.hpp>
#include <muster/elastic/rebuild.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Returns a number that is equal for processes that can watch and kill each other.
inline std::uint64_t host_number(const settings& configuration) {
  return digest().add(host_identity(configuration)).add(process_namespaces()).value();
}

/// Returns the limits of the job by the settings. `launch` has the number of initial members. Throws
/// configuration_error when the limits contradict each other.
inline elastic::membership_policy policy_of(const settings& configuration, const launch_env& launch) {
  const auto span_of = [](double value) { return std::chrono::duration_cast<clock::duration>(seconds(value)); };
  elastic::membership_policy policy;
  policy.initial_members = launch.size;
  policy.min_members = static_cast<int>(configuration.integer(setting::min_ranks));
  // A rank whose peers are elsewhere must not train alone, unless the user has chosen a number.
  if (configuration.is_default(setting::min_ranks)) policy.min_at_start = launch.size / 2 + 1;
  policy.max_members = static_cast<int>(configuration.integer(setting::max_ranks));
  policy.min_at_start = std::min(policy.min_at_start, policy.max_members);
  if (policy.max_members < policy.min_members) {
    throw configuration_error(configuration.origin(setting::max_ranks) + " is " + std::to_string(policy.max_members) +
                              " (the job needs at least " + std::to_string(policy.min_members) + " by " +
                              configuration.origin(setting::min_ranks) + "); raise the first or lower the second");
  }
  const double beat = configuration.number(setting::heartbeat);
  policy.heartbeat_interval = span_of(beat);
  policy.suspicion_timeout = span_of(beat * static_cast<double>(configuration.integer(setting::missed_heartbeats)));
  if (configuration.choice(setting::slow_ranks, {"ignore", "report", "remove"}) > 0)
    policy.slow_factor = configuration.number(setting::slow_factor);
  policy.slow_members_leave = configuration.value(setting::slow_ranks) == "remove";
  policy.quorum_timeout = span_of(configuration.number(setting::quorum_timeout));
  return policy;
}

/// A process in an elastic job. Used by one thread, except for its service.
class job_member {
 public:
  /// Starts to announce the process. `order`: the ranks of the first generation are in the order of these numbers.
  /// `progress`: of the process's state, since the first generation begins with the furthest state. The settings must
  /// outlive the object.
  job_member(const settings& configuration, const launch_env& launch, const std::shared_ptr<any_store>& store,
             std::uint64_t order, std::uint64_t progress)
      : configuration_(configuration), interface_(interface_of(configuration, launch)) {
    const auto until = deadline_after(seconds(configuration.number(setting::timeout)));
    const auto policy = policy_of(configuration, launch);
    token_ = common_token(*store, configuration, until);
    auto socket = std::make_unique<datagram_socket>(interface_, configuration.origin(setting::interface), token_);
    while (self_.id == 0) fill_random(std::as_writable_bytes(std::span(&self_.id, 1)));  // 0 is not a valid id
    self_.host = host_number(configuration);
    self_.order = order;
    self_.progress = progress;
    self_.process = process_identity::own();
    self_.datagram_endpoints = socket->endpoints();
    self_.endpoints = open_listeners();
    service_.emplace(store, std::move(socket), self_, policy,
                     static_cast<std::size_t>(configuration.integer(setting::slow_steps)));
  }

  [[nodiscard]] const elastic::member& self() const noexcept { return self_; }
  [[nodiscard]] membership_service& service() noexcept { return *service_; }
  /// Returns the endpoints at which the members of the next generation find this process.
  [[nodiscard]] std::string endpoints() const { return listener_endpoints(*listeners_, configuration_); }

  /// Connects the members of a generation that contains this process, over `memory` where members share a host; see
  /// `connect_members`. First opens new listeners for the generation after it.
  [[nodiscard]] built_group connect(const elastic::generation_record& group, std::shared_ptr<segment> memory,
                                    const std::function<bool()>& is_canceled, bool any_source = false) {
    tcp_listeners present = std::move(*listeners_);
    service_->apply([endpoints = open_listeners()](auto& protocol, auto) { protocol.set_endpoints(endpoints); });
    return connect_members({&configuration_, std::move(memory), token_, any_source}, group, *group.rank_of(self_.id),
                           std::move(present), is_canceled);
  }

  /// Leaves the job, and waits at most 2 s until the others leave too. A process that ends because of an error does not
  /// wait for the others.
  void leave() noexcept {
    try {
      service_->apply([](auto& protocol, auto now) { protocol.leave(now); });
      if (std::uncaught_exceptions() == 0) service_->await_others_leaving(deadline_after(elastic_timing::farewell));
      service_->apply([](auto& protocol, auto now) { protocol.stopped(now); });
    } catch (...) {  // it leaves without an announcement: the others detect that soon
    }
  }

  /// Reports the members that a timeout names as suspect. Members of a generation that is already over are late for
  /// that reason, so do not call it then.
  void suspect_missing(const elastic::generation_record& group, const timeout_error& late, const std::string& reason) {
    for (const int rank : late.missing()) {
      const auto missing = group.members[static_cast<std::size_t>(rank)].id;
      service_->apply([&](auto& protocol, auto now) { protocol.suspect(now, missing, reason + late.what()); });
    }
  }

 private:
  // Replaces the listeners by new ones and returns their endpoints.
  [[nodiscard]] std::string open_listeners() {
    listeners_.emplace(interface_, configuration_.origin(setting::interface));
    return endpoints();
  }

  const settings& configuration_;
  std::string interface_;
  std::string token_;
  elastic::member self_;
  std::optional<tcp_listeners> listeners_;
  std::optional<membership_service> service_;
};

}}}  // namespace muster::v0::detail
