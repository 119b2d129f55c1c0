#include "client.hpp"

#include <algorithm>
#include <thread>

#include "base64.hpp"

namespace muster::inline v0::detail {
namespace {

using nlohmann::json;

// One member that hangs does not use up the time of all.
constexpr seconds for_one_member{5.0};
constexpr int code_not_found = 5;
constexpr int code_unavailable = 14;
constexpr int code_deadline = 4;

}  // namespace

std::uint64_t number_in(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_number_unsigned()) return found->get<std::uint64_t>();
  return found->is_string() ? std::strtoull(found->get_ref<const std::string&>().c_str(), nullptr, 10) : 0;
}

store_entry entry_in(const json& pair) {
  return {number_in(pair, "mod_revision"), from_base64(pair.value("value", std::string()))};
}

etcd_client::etcd_client(std::string_view endpoints, std::string_view scheme)
    : where_((scheme == "https" ? "etcds://" : "etcd://") + std::string(endpoints)) {
  for (auto rest = endpoints;;) {
    const auto comma = rest.find(',');
    const auto one = rest.substr(0, comma);
    if (one.empty()) throw configuration_error("'" + where_ + "' is no etcd (it is host:port,host:port); write it so");
    endpoints_.push_back(std::string(scheme) + "://" + std::string(one));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
}

json etcd_client::ask(const char* call, std::string_view key, std::string_view path, const json& what,
                      clock::time_point until, when_lost then) {
  const std::string body = what.dump();
  auto nap = std::chrono::milliseconds(5);
  for (;;) {
    const auto which = present_.load();
    const auto came =
        http_.post(endpoint(which) + std::string(path), body, std::min(until, deadline_after(for_one_member)));
    const auto said = came.status != 0 ? json::parse(came.body, nullptr, false) : json();
    if (came.status == 200 && said.is_object()) return said;
    const int code = said.is_object() ? said.value("code", 0) : code_unavailable;
    if (code == code_not_found) {
      throw store_lease_ended("a lease at the store " + where_ +
                              " has ended (its holder was silent for longer than it lives, or let it go); begin anew");
    }
    if (code != code_unavailable && code != code_deadline) {
      throw configuration_error("the store " + where_ + " refuses (" + said.value("message", said.dump()) +
                                "); see how that etcd is set up");
    }
    if (then == when_lost::give_up && came.sent) store_timed_out(call, key, where_);
    if (clock::now() + nap >= until) store_timed_out(call, key, where_);
    auto expected = which;
    present_.compare_exchange_strong(expected, which + 1);
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, std::chrono::milliseconds(500));
  }
}

void etcd_client::follow(json range, std::uint64_t revision, const std::stop_token& stop,
                         const std::function<void(std::string_view)>& hear) {
  auto which = present_.load();
  range["start_revision"] = std::to_string(revision);
  const json what = {{"create_request", std::move(range)}};
  http_.follow(endpoint(which) + "/v3/watch", what.dump(), stop, hear);
  present_.compare_exchange_strong(which, which + 1);
}

}  // namespace muster::inline v0::detail
