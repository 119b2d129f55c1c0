// Collectives of ranks that see each other's memory.
#pragma once

#include <optional>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/comm/task.hpp>

#include "cores.hpp"
#include "shm_group.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Rounds in the staging area at least: one is filled while one is read.
inline constexpr std::uint64_t staging_depth = 2;

/// Most bytes of a chunk in the staging area among so many ranks: each round has one for every rank, and the folded
/// one. Whole pages where there is room for them; among hundreds of ranks of a host, whole cache lines.
[[nodiscard]] constexpr std::size_t staging_chunk_bytes(std::size_t ranks) noexcept {
  constexpr std::size_t page = 4096;
  constexpr std::size_t largest = std::size_t{256} << 10;
  const std::size_t room = staging_bytes(ranks) / (staging_depth * (ranks + 1));
  const std::size_t unit = room >= page ? page : cache_line;
  return room >= largest ? largest : room / unit * unit;
}

/// One native collective at a time, in one of three ways:
///
/// - small: every rank contributes its data in its slot and does for itself what is to be done with all contributions;
///   so also up to `shown_limit`, where no buffer is registered;
/// - direct: all buffers lie in shared memory; rank r folds block r of all inputs and writes the result to the ranks
///   that get it, with no copy between and two synchronisations. Where ranks share cores, it goes on with the blocks
///   that no rank has begun, so that it waits for none that has no core just now;
/// - staged: private buffers, in rounds of chunks through the ranks' staging areas: lay out for each other rank its
///   block, fold the own block of all, take the folded blocks of the others.
///
/// All fold in the order of ranks, so the bits are the same whichever way it goes. No rank writes into the private
/// memory of another; into shared memory a rank writes under `slot_head::writing`, and a rank that fails first revokes
/// its memory and then waits until no rank writes there.
class shm_native {
 public:
  explicit shm_native(shm_group& shm) : shm_(shm), cores_(shm.size()), peers_in_(size()), peers_out_(size()) {}

  enum class begun { no, yes, done };
  /// No for what it does not do, which the library's own algorithms over messages then do. `call` lives until it is
  /// done.
  begun start(const collective_call& call);
  bool test(request& r);
  /// Whether a rank that has not come yet was last seen on the core that this one runs on: it comes when this one goes.
  /// All others come by themselves, soon. True when no collective is under way.
  [[nodiscard]] bool waits_for_this_core() const;
  /// Takes the collective back and ends all native collectives of this rank in this group.
  void cancel() noexcept;

 private:
  using flow_type = driver;

  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(shm_.size()); }

  // Offers.
  [[nodiscard]] std::size_t turn() const noexcept { return sequence_ % slot_head::turns; }
  [[nodiscard]] std::size_t bytes_in() const noexcept;
  [[nodiscard]] std::size_t bytes_out() const noexcept;
  [[nodiscard]] std::span<std::byte> own_block() const noexcept { return blocks_of(nullptr).at(shm_.rank()); }
  [[nodiscard]] bool may_offer();
  void say_where() noexcept;
  void make_contribution(const std::byte* small, std::size_t bytes);
  void make_offer_of_places();
  [[nodiscard]] bool contributed(int peer);
  [[nodiscard]] bool all_offered();
  [[nodiscard]] bool all_finished(std::uint64_t sequence);
  [[noreturn]] void disagree(int peer);
  void finish() noexcept;

  // Small ones.
  struct small_plan {
    std::size_t contributed = 0;  // bytes this rank contributes
    bool contributions = true;
    bool awaits_all = true;  // else the root alone, or no rank
    bool awaits_root = false;
    bool fits = false;
    bool shows = false;  // all of it with the places of its buffers, if these are private
  };
  [[nodiscard]] small_plan plan_small() const;
  [[nodiscard]] bool advance_small();
  [[nodiscard]] std::byte* shown_by(int rank) noexcept;
  [[nodiscard]] const std::byte* small_payload(int peer);
  void complete_small();

  // Large ones.
  [[nodiscard]] std::uint64_t step(std::uint64_t number) const noexcept { return step_word(sequence_, number); }
  [[nodiscard]] bool all_at(std::atomic<std::uint64_t> slot_head::*counter, std::uint64_t number);
  void reach(std::atomic<std::uint64_t>& counter, std::uint64_t number) noexcept;
  [[nodiscard]] bool takes(int rank, int block) const noexcept;
  [[nodiscard]] bool others_take() const noexcept;
  [[nodiscard]] bool is_direct();
  [[nodiscard]] bool all_show() const noexcept;
  [[nodiscard]] std::byte* laid_out(int by, std::uint64_t round, int block) noexcept;
  [[nodiscard]] std::byte* folded_chunk(int by, std::uint64_t round) noexcept;
  class visit;
  [[nodiscard]] bool folds_for_others() const noexcept;
  [[nodiscard]] bool claim(int block) noexcept;
  [[nodiscard]] bool fold_block(int block);
  [[nodiscard]] bool write_to_others(int block, std::size_t begin, std::size_t bytes);
  [[nodiscard]] bool somebody_revoked() noexcept;
  [[nodiscard]] blocks blocks_of(const std::byte* data) const noexcept;
  [[nodiscard]] std::span<std::byte> chunk_of(const std::byte* data, int block, std::uint64_t round) const noexcept;

  void divide(std::size_t bytes, std::size_t chunk, std::size_t in_a_round);
  [[nodiscard]] std::uint64_t time_of(std::uint64_t round) const noexcept { return round + sequence_ * rounds_; }
  void lay_out_round(std::uint64_t round);
  void fold_round(std::uint64_t round);
  [[nodiscard]] std::span<std::byte> own_result(std::uint64_t round) const noexcept;
  void take_round(std::uint64_t round);

  static task exchange(flow_type& f, shm_native& s);
  static task exchange_direct(flow_type& f, shm_native& s);
  static task exchange_chunks(flow_type& f, shm_native& s);
  static task broadcast(flow_type& f, shm_native& s);
  static task broadcast_chunks(flow_type& f, shm_native& s);

  shm_group& shm_;
  core_spreader cores_;
  // The collective under way, or null.
  const collective_call* call_ = nullptr;
  std::uint64_t sequence_ = 0;
  std::uint32_t signature_hash_ = 0;
  small_plan plan_;
  bool has_offered_ = false;
  int next_peer_ = 0;  // those before it have contributed

  // What is known of the others, so that their slots need not be asked.
  std::uint64_t all_finished_ = 0;  // every rank has finished this collective
  std::uint64_t staging_used_ = 0;  // the last collective in which others read this rank's staging area

  // How the collective under way goes through the staging areas.
  std::size_t chunk_ = 0;     // bytes of a block, or of all, in a round
  std::uint64_t rounds_ = 0;  // in all
  std::uint64_t depth_ = 0;   // in the area at a time

  frame_pool pool_;
  std::optional<flow_type> steps_;
  task body_;
  std::vector<const std::byte*> peers_in_;
  std::vector<std::byte*> peers_out_;
};

}}}  // namespace muster::v0::detail
