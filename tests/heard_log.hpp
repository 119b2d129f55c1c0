// The capture of log messages in a test.
#pragma once

#include <string>

#include <muster/core/log.hpp>

namespace test {

/// Captures log messages during its lifetime, in place of stderr.
class heard_log {
 public:
  heard_log() {
    muster::set_log_callback([this](const muster::log_message& message) { text_ += std::string(message.text) + "\n"; });
  }
  heard_log(const heard_log&) = delete;
  heard_log& operator=(const heard_log&) = delete;
  ~heard_log() { muster::set_log_callback({}); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace test
