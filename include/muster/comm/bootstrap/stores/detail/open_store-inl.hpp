#pragma once

#include <muster/comm/bootstrap/open_store.hpp>

#include <unistd.h>

#include <atomic>
#include <map>
#include <utility>

#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/random_bytes.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline std::map<std::string, detail::store_opener>& openers() {
  static std::map<std::string, detail::store_opener> registered;
  return registered;
}

inline std::atomic<bool> was_opened = false;

// A store whose keys begin with the name of a job, so that jobs that use one server do not find each other.
class store_of_job final : public any_store {
 public:
  store_of_job(std::unique_ptr<any_store> inner, std::string_view job)
      : inner_(std::move(inner)), prefix_(detail::store_name(job) + "/") {}

  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until) override {
    return inner_->get(named(key), until);
  }
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, store_life life) override {
    return inner_->compare_and_swap(named(key), expected, value, until, life);
  }
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until,
                                                 const std::stop_token& stop) override {
    return inner_->watch(named(key), known, until, stop);
  }
  [[nodiscard]] std::string where() const override { return inner_->where(); }
  [[nodiscard]] bool is_served_here() const override { return inner_->is_served_here(); }

 private:
  [[nodiscard]] std::string named(std::string_view key) const {
    detail::check_store_key(key, where(), store_key_limit - prefix_.size());
    return prefix_ + std::string(key);
  }

  std::unique_ptr<any_store> inner_;
  std::string prefix_;
};

inline std::unique_ptr<any_store> try_open(const std::string& scheme, const std::string& place,
                                           const detail::store_opening& request, std::string& why_not) {
  const auto found = openers().find(scheme);
  if (found != openers().end()) return found->second(place, request, why_not);
  why_not = linked_without(scheme.starts_with("etcd") ? "etcd" : "tcp");
  return nullptr;
}

inline std::unique_ptr<any_store> open_in(const std::string& scheme, const std::string& place,
                                          const detail::store_opening& request) {
  std::string why_not;
  if (auto opened = try_open(scheme, place, request, why_not)) {
    // The names of an etcd and of a file already contain a job's name.
    const auto& job = request.configuration.value(setting::job);
    return scheme == "tcp" && job != "auto" ? detail::of_job(std::move(opened), job) : std::move(opened);
  }
  throw configuration_error(request.origin + " asks for a store of kind '" + scheme + "' (" + why_not +
                            "); link muster::muster from a build that has it, or use another store");
}

inline std::unique_ptr<any_store> open_automatically(detail::store_opening request) {
  const auto& launch = request.launch;
  if (launch.size == 1 && (!request.is_elastic() || launch.kind == launch_env::launcher::none))
    return std::make_unique<memory_store>();  // no other rank will arrive
  request.origin = "a job of one host";
  const auto open_local = [&] { return open_in("file", temporary_folder(), request); };
  if (request.is_elastic() && launch.on_one_host()) return open_local();  // through PMIx each rank would wait for all
  std::string why_not = "the launcher offers no PMIx";
  if (environment("PMIX_NAMESPACE") && launch.size > 1) {
    if (auto opened = try_open("pmix", "", request, why_not)) return opened;
  }
  const auto host = environment("MASTER_ADDR");
  const auto port = environment("MASTER_PORT");
  if (host && port) {
    const bool bracket = host->find(':') != std::string::npos && !host->starts_with('[');
    request.origin = "MASTER_ADDR and MASTER_PORT";
    return open_in("tcp", (bracket ? "[" + *host + "]" : *host) + ":" + *port, request);
  }
  if (launch.on_one_host() || launch.size == 1) return open_local();
  throw configuration_error(
      "the ranks cannot find each other (" + why_not +
      ", and neither MASTER_ADDR and MASTER_PORT nor --rendezvous is set); set --rendezvous tcp://HOST:PORT, HOST "
      "being rank 0's, or --rendezvous file:/FOLDER on a file system of all hosts");
}

}  // namespace detail

MUSTER_INLINE std::unique_ptr<any_store> open_store(const settings& configuration, const launch_env& launch,
                                                    store_role role) {
  detail::prepare_process();
  detail::was_opened = true;
  const std::string& place = configuration.value(setting::rendezvous);
  const detail::store_opening request{configuration, launch, configuration.origin(setting::rendezvous),
                                      deadline_after(seconds(configuration.number(setting::timeout))), role};
  if (role == store_role::onlooker && !place.starts_with("etcd"))
    throw configuration_error(request.origin + " is " + place +
                              " (an onlooker opens the store of an etcd); open it as a member");
  if (place == "auto") return detail::open_automatically(request);
  if (place.starts_with("file:/")) return detail::open_in("file", place.substr(5), request);
  for (const std::string kind : {"tcp", "etcd", "etcds"}) {
    if (place.starts_with(kind + "://")) return detail::open_in(kind, place.substr(kind.size() + 3), request);
  }
  for (const auto& [kind, opener] : detail::openers()) {  // a kind of the program, such as torch.distributed's
    if (place.starts_with(kind + "://")) return open_in(kind, place.substr(kind.size() + 3), request);
  }
  throw configuration_error(request.origin + " cannot be '" + place +
                            "' (it is auto, tcp://host:port, etcd://host:port or file:/folder); write "
                            "tcp://node1:29500 or file:/shared/folder");
}

MUSTER_INLINE std::string common_token(any_store& store, const settings& configuration, clock::time_point until) {
  const std::string& requested = configuration.value(setting::token);
  if (requested != "auto") return requested;
  const auto found = store.get("token", until);
  if (found) return found.value;
  const std::string drawn = detail::random_token();
  const auto result = store.compare_and_swap("token", 0, drawn, until);
  return result.swapped ? drawn : result.now.value;
}

MUSTER_INLINE std::string detail::job_name(const settings& configuration, const launch_env& launch) {
  const auto& requested = configuration.value(setting::job);
  if (requested != "auto") return requested;
  if (!launch.start_name.empty()) return launch.start_name;
  if (launch.kind == launch_env::launcher::none) return std::to_string(::getpid());
  const auto& place = configuration.value(setting::rendezvous);
  if (place.starts_with("tcp://")) return place;
  throw configuration_error(launch.reason +
                            " do not name the job (a second job on this host would use the same store); set "
                            "MUSTER_JOB=NAME, the same at all ranks, or MASTER_ADDR and MASTER_PORT");
}

MUSTER_INLINE std::string detail::store_name(std::string_view job) {
  constexpr std::size_t longest = 200;
  std::string sanitized(job.substr(0, longest));
  for (char& c : sanitized) {
    const bool is_allowed =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
    if (!is_allowed) c = '_';
  }
  if (sanitized != job) {  // the digest keeps jobs apart whose names differ in other characters, or at their ends
    const std::string suffix = "-" + detail::hex(digest().add(job).value());
    sanitized = sanitized.substr(0, longest - suffix.size()) + suffix;
  }
  return "muster-" + std::to_string(::geteuid()) + "-" + sanitized;
}

MUSTER_INLINE std::unique_ptr<any_store> detail::of_job(std::unique_ptr<any_store> store, std::string_view job) {
  return std::make_unique<detail::store_of_job>(std::move(store), job);
}

MUSTER_INLINE bool detail::store_was_opened() noexcept { return detail::was_opened; }

MUSTER_INLINE void detail::register_store(const std::string& scheme, store_opener opener) {
  detail::openers()[scheme] = opener;
}

}}  // namespace muster::v0
