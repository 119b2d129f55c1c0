#include "state_transfer.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr std::size_t chunk = std::size_t{4} << 20;
constexpr std::size_t at_once = 2;  // chunks

struct standing {
  state_position at;
  state::run_start run;
  std::uint64_t in_run;
  std::uint64_t may_hold;
};
static_assert(std::is_trivially_copyable_v<standing>);

// What the first holder says before it sends.
struct announcement {
  std::uint64_t names;  // of the parts and their kinds
  std::uint64_t parts;  // replicated ones
};

// What collectives move: bytes as numbers.
template <class T>
std::span<std::uint8_t> numbers(std::span<T> of) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<std::uint8_t*>(of.data()), of.size_bytes()};
}

class transfer {
 public:
  transfer(group& ranks, state& of)
      : ranks_(ranks), of_(of), parts_(of.parts()), rank_(static_cast<std::size_t>(ranks.rank())) {}

  transfer_result run(bool may_hold, bool in_place) {
    const auto& run = of_.run();
    standing mine{of_.position(), run.value_or(state::run_start{}), run ? 1u : 0u, may_hold ? 1u : 0u};
    std::vector<standing> all(static_cast<std::size_t>(ranks_.size()));
    allgather(ranks_, numbers(std::span(&mine, 1)), numbers(std::span(all)));
    find_holders(all);
    if (holders_.size() == all.size()) return {};
    const bool holds = std::find(holders_.begin(), holders_.end(), static_cast<int>(rank_)) != holders_.end();
    for (const auto& part : parts_) {
      names_.add(part.name).add(static_cast<std::uint64_t>(part.kind));
      if (part.kind == state_kind::replicated) wanted_.push_back(&part);
    }
    announcement said{};
    if (holds) said = {names_.value(), wanted_.size()};
    broadcast(ranks_, numbers(std::span(&said, 1)), holders_.front());
    if (said.names != names_.value() || said.parts != wanted_.size()) {
      throw configuration_error(
          "the state of this rank has other parts than that of the others (every rank makes its state of the same "
          "owners in the same order); look at how it is made");
    }
    if (!holds) return take(all[static_cast<std::size_t>(holders_.front())], in_place);
    give();
    return {};
  }

 private:
  void find_holders(const std::vector<standing>& all) {
    const standing* furthest = nullptr;
    for (const auto& one : all) {
      if (one.may_hold != 0 && (furthest == nullptr || one.at.is_beyond(furthest->at))) furthest = &one;
    }
    if (furthest == nullptr) {
      throw error(error_kind::other,
                  "no member of the group holds the state of the training any more (all that did are gone); start from "
                  "the last checkpoint");
    }
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].may_hold != 0 && all[r].at == furthest->at) holders_.push_back(static_cast<int>(r));
    }
  }

  // Chunks of all parts, one after the other: who sends one is the next of the holders. While one travels, the one
  // before is added to the digest.
  void move_all(std::span<std::byte> bytes) {
    struct moving {
      std::span<std::byte> piece;
      work going;
    };
    std::deque<moving> under_way;  // gone before the bytes are, whatever happens
    const auto settle_first = [&] {
      under_way.front().going.wait();
      bytes_.add(crc32c(under_way.front().piece));
      under_way.pop_front();
    };
    for (std::size_t at = 0; at < bytes.size(); at += chunk) {
      const auto piece = bytes.subspan(at, std::min(chunk, bytes.size() - at));
      if (under_way.size() == at_once) settle_first();
      const int from = holders_[turn_++ % holders_.size()];
      under_way.push_back({piece, broadcast_async(ranks_, numbers(piece), from)});
    }
    while (!under_way.empty()) settle_first();
  }

  std::uint64_t size_at_holder(std::uint64_t mine) {
    broadcast(ranks_, numbers(std::span(&mine, 1)), holders_.front());
    return mine;
  }

  std::uint64_t digest_at_holder() {
    std::uint64_t value = bytes_.value();
    broadcast(ranks_, numbers(std::span(&value, 1)), holders_.front());
    return value;
  }

  // Another holder's copy is the same, byte for byte: it does no harm that it is received over this one.
  void give() {
    for (const auto* part : wanted_) {
      std::vector<std::byte> saved;
      if (part->save) saved = part->save();
      std::span<std::byte> bytes = part->save ? std::span(saved) : part->bytes;
      (void)size_at_holder(bytes.size());
      move_all(bytes);
    }
    (void)digest_at_holder();
  }

  transfer_result take(const standing& there, bool in_place) {
    std::vector<std::vector<std::byte>> came;
    transfer_result done{true, 0};
    for (const auto* part : wanted_) {
      const std::uint64_t size = size_at_holder(0);
      if (!part->save && size != part->bytes.size()) {
        throw configuration_error("part '" + part->name + "' of the state has " + std::to_string(part->bytes.size()) +
                                  " bytes here (and " + std::to_string(size) +
                                  " at the others); every rank makes the same model");
      }
      const bool directly = in_place && !part->save;
      came.emplace_back(directly ? 0 : size);
      move_all(directly ? part->bytes : std::span(came.back()));
      done.bytes += size;
    }
    if (digest_at_holder() != bytes_.value()) {
      throw error(error_kind::other,
                  "the state that came from the others is not what they hold (its digest is another); this is a fault "
                  "of the memory or of the network: start this rank again");
    }
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (wanted_[i]->save) {
        wanted_[i]->load(came[i]);
      } else if (!came[i].empty()) {
        std::memcpy(wanted_[i]->bytes.data(), came[i].data(), came[i].size());
      }
    }
    of_.move_to(there.at);
    of_.follow_run(there.in_run != 0 ? std::optional(there.run) : std::nullopt);
    return done;
  }

  group& ranks_;
  state& of_;
  const std::vector<state_part> parts_;  // a copy: whoever asks the state for them again gets others
  std::size_t rank_;
  std::vector<int> holders_;
  std::vector<const state_part*> wanted_;  // of them: the replicated ones
  digest names_;
  digest bytes_;  // of all chunks that were moved
  std::size_t turn_ = 0;
};

}  // namespace

transfer_result transfer_state(group& ranks, state& of, bool may_hold, bool in_place) {
  if (ranks.size() == 1 && may_hold) return {};
  return transfer(ranks, of).run(may_hold, in_place);
}

}  // namespace muster::inline v0::detail
