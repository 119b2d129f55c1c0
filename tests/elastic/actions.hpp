// The actions that a membership requests, recorded until a test carries them out.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <muster/elastic/membership/membership.hpp>

/// A structure for each function of `membership_outlet`.
namespace act {
struct send {
  muster::elastic::heartbeat message;
  std::vector<muster::elastic::member_id> recipients;
};
struct swap {
  std::uint64_t expected;
  muster::elastic::generation_record next;
};
struct stop {
  std::string why;
};
struct halt {
  std::uint64_t step;
};
struct kill {
  muster::elastic::member peer;
};
struct note {
  std::string text;
};
struct form {
  muster::elastic::generation_record group;
};
struct end {
  muster::elastic::exit_reason why;
  std::string text;
  bool is_first = false;
};
}  // namespace act
using action = std::variant<act::send, act::swap, act::stop, act::halt, act::kill, act::note, act::form, act::end>;

class recorded_actions final : public muster::elastic::membership_outlet {
 public:
  /// Returns all actions since the last call, in their order.
  [[nodiscard]] std::vector<action> take() { return std::exchange(all_, {}); }

  void send(const muster::elastic::heartbeat& message,
            const std::vector<muster::elastic::member_id>& recipients) override {
    all_.emplace_back(act::send{message, recipients});
  }
  void swap(std::uint64_t expected, const muster::elastic::generation_record& next) override {
    all_.emplace_back(act::swap{expected, next});
  }
  void stop(const std::string& why) override { all_.emplace_back(act::stop{why}); }
  void halt(std::uint64_t step) override { all_.emplace_back(act::halt{step}); }
  void kill(const muster::elastic::member& peer) override { all_.emplace_back(act::kill{peer}); }
  void note(const std::string& text) override { all_.emplace_back(act::note{text}); }
  void form(const muster::elastic::generation_record& group) override { all_.emplace_back(act::form{group}); }
  void end(muster::elastic::exit_reason why, const std::string& text, bool is_first) override {
    all_.emplace_back(act::end{why, text, is_first});
  }

 private:
  std::vector<action> all_;
};
