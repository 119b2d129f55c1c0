#include "rank_zero.hpp"

#include <nlohmann/json.hpp>

#include <muster/comm/profile.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "group_state.hpp"

namespace muster::inline v0::detail {
namespace {

using json = nlohmann::json;

// Tagged messages of a group on which no collective has begun.
class messenger {
 public:
  messenger(group_state& state, clock::time_point until) : state_(state), until_(until) {}

  void send(int peer, const std::string& text) {
    const std::uint64_t length = text.size();
    move(&transport::send, peer, reinterpret_cast<const std::byte*>(&length), sizeof length);
    move(&transport::send, peer, reinterpret_cast<const std::byte*>(text.data()), length);
  }

  [[nodiscard]] std::string receive(int peer) {
    std::uint64_t length = 0;
    move(&transport::receive, peer, reinterpret_cast<const std::byte*>(&length), sizeof length);
    std::string text(length, '\0');
    move(&transport::receive, peer, reinterpret_cast<const std::byte*>(text.data()), length);
    return text;
  }

 private:
  void move(void (transport::*start)(request&), int peer, const std::byte* data, std::size_t bytes) {
    request r;
    r.data = const_cast<std::byte*>(data);
    r.bytes = bytes;
    r.peer = peer;
    r.tag = settings_tag;
    ((*state_.transport).*start)(r);
    while (!state_.transport->test(r)) {
      state_.poll_notices();
      if (state_.failed()) std::rethrow_exception(state_.failure());
      if (clock::now() >= until_) {
        throw error(error_kind::timeout, "rank " + std::to_string(peer) +
                                             " did not take part in the exchange of settings (its time is over); look "
                                             "at what it does, or raise --timeout / MUSTER_TIMEOUT");
      }
      state_.transport->pause(until_);
    }
  }

  group_state& state_;
  clock::time_point until_;
};

void tell_difference(const settings& configuration, setting which, const std::string& of_rank_zero) {
  if (configuration.value(which) == of_rank_zero) return;
  log(log_level::info, configuration.origin(which) + " '" + configuration.value(which) + "' is ignored (rank 0 has '" +
                           of_rank_zero + "', and its choice is everyone's)");
}

}  // namespace

group_settings settings_of_rank_zero(group& world, const group_settings& mine, const settings& configuration) {
  if (world.size() == 1) return mine;
  auto& state = *world.state();
  group_settings agreed = mine;
  try {
    messenger messages(state, deadline_after(mine.timeout));
    if (world.rank() == 0) {
      const json told = {{"algorithm", configuration.value(setting::algorithm)},
                         {"profile", configuration.value(setting::profile)},
                         {"measured", mine.profile ? mine.profile->to_json() : ""}};
      const std::string text = told.dump(-1, ' ', false, json::error_handler_t::replace);
      for (int peer = 1; peer < world.size(); ++peer) messages.send(peer, text);
      return agreed;
    }
    const json told = json::parse(messages.receive(0));
    const auto field = [&](const char* name) { return told.at(name).get<std::string>(); };
    agreed.how = algorithm_rules::parse(field("algorithm"), "the algorithm of rank 0");
    agreed.profile = nullptr;
    if (const auto measured = field("measured"); !measured.empty()) {
      agreed.profile = std::make_shared<algorithm_profile>(algorithm_profile::parse(measured, "the profile of rank 0"));
    }
    tell_difference(configuration, setting::algorithm, field("algorithm"));
    tell_difference(configuration, setting::profile, field("profile"));
  } catch (...) {
    state.fail(std::current_exception());  // nothing new where it has failed already
  }
  return agreed;
}

}  // namespace muster::inline v0::detail
