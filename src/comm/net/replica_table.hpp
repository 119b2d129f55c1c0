// The contents of an embedded store, as every member carries them: the same changes make the same contents.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store_table.hpp"

namespace muster::inline v0::detail {

/// A table, and what clients were told: one that asks again, because who was to answer is gone, gets the same answer
/// and nothing is done twice.
class replica_table {
 public:
  using client = store_table::client;

  /// What happens to the contents.
  struct change {
    enum class kind : std::uint8_t {
      ask = 1,  ///< the client asks for `request`, and has the answers of all its requests below `done`
      forget,   ///< it is not heard any more
      leave     ///< it is gone
    };
    kind what = kind::ask;
    client whose = 0;
    std::uint64_t done = 0;
    std::string request{};  ///< the body of a frame

    [[nodiscard]] std::string encode() const;
    [[nodiscard]] static std::optional<change> decode(std::string_view text);
  };

  /// `tell` gets the answers, as the table's does.
  explicit replica_table(store_table::answer tell);
  replica_table(const replica_table&) = delete;
  replica_table& operator=(const replica_table&) = delete;

  /// What means nothing changes nothing.
  void apply(const change& made, clock::time_point now);

  /// Time passes for leases at one member only.
  [[nodiscard]] std::vector<store_table::due_lease> due(clock::time_point now) const { return table_.due(now); }
  void forgive(clock::duration deafness) { table_.forgive(deafness); }
  void renew(clock::time_point now) { table_.renew(now); }
  /// Whoever has something here: watches, leases, answers.
  [[nodiscard]] std::vector<client> clients() const;

  [[nodiscard]] std::string save() const;
  [[nodiscard]] bool load(std::string_view text, clock::time_point now);

 private:
  struct told {
    store_status status = store_status::done;
    std::uint64_t number = 0;
    std::string value;
  };

  store_table::answer tell_;
  store_table table_;
  std::map<client, std::map<std::uint64_t, told>> told_;  // by client and request
  client asking_ = 0;                                     // whose answer to what is to be kept
  std::uint64_t asked_ = 0;
};

}  // namespace muster::inline v0::detail
