// What the members of an embedded store say to each other.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::inline v0::detail {

/// One process that carries the store.
struct replica_member {
  std::uint64_t id = 0;    ///< drawn at random: a process that is started again is somebody else
  std::uint64_t host = 0;  ///< equal for two members that see each other's end; 0: nobody does
  std::string card;        ///< how it is reached; the protocol does not read it

  bool operator==(const replica_member&) const = default;
};

/// Every attempt at a view has a number that no other has, and that who makes it has seen none beyond.
struct replica_ballot {
  std::uint64_t round = 0;
  std::uint64_t by = 0;

  auto operator<=>(const replica_ballot&) const = default;
};

/// Who carries the store, and who leads them: whoever made the view.
struct replica_view {
  std::uint64_t store = 0;  ///< who began it: two that were begun apart never mix
  replica_ballot number;    ///< of round 0: there is none yet
  std::vector<replica_member> members;
  /// Views of which it is not known whether one of them is still in force: each must agree to a next one.
  std::vector<std::vector<replica_member>> before;
  bool in_force = false;  ///< all members have taken it up: those before are over

  [[nodiscard]] bool has(std::uint64_t id) const noexcept;
  explicit operator bool() const noexcept { return number.round != 0; }
  bool operator==(const replica_view&) const = default;
};

struct replica_message {
  enum class kind : std::uint8_t {
    join = 1,   ///< `member` wants to be one
    see,        ///< `view` is what there is
    prepare,    ///< promise to hear nobody below `number`; the sender is at `view.number`, `index`
    promise,    ///< so it is; `view`, `index`, what it holds in `text` if that is beyond the asker's, and the `dead`
    refuse,     ///< another has the promise: `number`; `view` is what there is
    install,    ///< take up `view` at `index`, with the contents `text` if that is there
    installed,  ///< done, of `number`
    change,     ///< the contents change by `text`, the `index`th time
    done,       ///< all changes up to `index` are made
    beat,       ///< the leader of the view `number` lives, and these are `dead`
    echo,       ///< so does this member
    call,       ///< a client asks `text`, and has all answers below `index`
    reply,      ///< to it
    gone,       ///< the sender carries the store no more, whatever comes
    hello       ///< first on a connection: `member` speaks, and wants to speak to `index`; 0: to whoever is there
  };

  kind what = kind::gone;
  replica_ballot number{};
  std::uint64_t index = 0;
  replica_view view{};
  replica_member member{};
  std::vector<std::uint64_t> dead{};
  std::optional<std::string> text{};

  [[nodiscard]] std::string encode() const;
  /// Nothing when the bytes are no message.
  [[nodiscard]] static std::optional<replica_message> decode(std::string_view bytes);
};

}  // namespace muster::inline v0::detail
