// The rank's side of an elastic job: when to stop, when to go on, and with which members.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <muster/elastic/elastic.hpp>

#include "membership/service.hpp"
#include "rebuild.hpp"

namespace muster::inline v0::detail {

/// Behind `elastic::session`. Between two steps it looks at two atomic words of the membership; everything else
/// happens when these say that the generation is over.
class elastic_backend final : public session_backend {
 public:
  elastic_backend(context& of, elastic::session_options options);
  /// Leaves the job; see `elastic::session`.
  ~elastic_backend() override;

  void prepare(state& of) override;
  [[nodiscard]] group& ranks() override;
  [[nodiscard]] std::uint64_t generation() const noexcept override { return record_.generation; }
  void attempt(const std::function<void()>& f) override;
  void recover(state& of, std::exception_ptr why) override;
  void committed(const state& of) noexcept override;

 private:
  // When the parts of a change were done; for its line.
  struct stopwatch {
    clock::time_point began, stopped, agreed, connected, same_state;
  };

  // A group that is over. Over a network its end may take a while; what it shared on this host is given back when
  // nothing made from it is left, some generations later.
  struct former_group {
    std::shared_ptr<shm_host> host;
    std::jthread farewell;
  };

  void stop_present(const state& of);
  void retire_group();
  void forget_oldest();
  void build(state& of, const membership_service::next_generation& next);
  void connect();
  void suspect_missing(const timeout_error& late, const std::string& why);
  [[nodiscard]] std::string open_doors();  // new ones: the text by which the others find them
  void tell_first_step();
  [[nodiscard]] static std::uint64_t progress_of(const state& of) noexcept;
  [[nodiscard]] elastic::change describe(bool copied) const;
  void join_job();
  void catch_signals();
  void restore_signals() noexcept;

  context& context_;
  elastic::session_options options_;
  group_settings for_groups_;
  transport_config site_;
  elastic::member self_;
  std::optional<tcp_listeners> doors_;
  std::unique_ptr<membership_service> service_;  // from the first run on

  elastic::generation_record before_;
  elastic::generation_record record_;
  std::shared_ptr<revocation> revocation_;
  std::optional<group> group_;
  std::shared_ptr<shm_host> host_;  // of the present group
  std::deque<former_group> former_;
  bool holds_ = false;   // whether this rank's state counts
  bool stopped_ = true;  // in no generation, and the membership was told
  bool signals_caught_ = false;
  bool first_step_ = false;  // of this generation, not done yet
  std::uint64_t again_ = 0;
  clock::duration work_{};  // of its own in the last attempt
  stopwatch watch_{};
};

}  // namespace muster::inline v0::detail
