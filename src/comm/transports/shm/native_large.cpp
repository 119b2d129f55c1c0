// The native collectives on more data than one contribution holds.
#include <algorithm>
#include <cstring>

#include "../../../core/copy.hpp"
#include "../../../core/round_up.hpp"
#include "native.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t broadcast_pieces = 8;
constexpr std::size_t largest_broadcast_chunk = std::size_t{256} << 10;
constexpr std::size_t smallest_broadcast_chunk = 8192;
constexpr std::size_t visit_bytes = std::size_t{64} << 10;  // written between two looks at whether a rank gave up

}  // namespace

// ---- what the steps are made of ----

bool shm_native::all_at(std::atomic<std::uint64_t> slot_head::*counter, std::uint64_t number) {
  const std::uint64_t wanted = step(number);
  for (; next_peer_ < shm_.size(); ++next_peer_) {
    if (next_peer_ == shm_.rank()) continue;
    if ((shm_.slot(next_peer_).*counter).load(std::memory_order_acquire) < wanted) return false;
  }
  next_peer_ = 0;
  return true;
}

void shm_native::reach(std::atomic<std::uint64_t>& counter, std::uint64_t number) noexcept {
  counter.store(step(number), std::memory_order_release);
  shm_.wake_all();
}

bool shm_native::takes(int rank, int block) const noexcept {
  switch (call_->kind) {
    case collective::reduce:
      return rank == call_->root;
    case collective::reduce_scatter:
      return rank == block;
    default:
      return true;
  }
}

// Whether another rank gets the block that this one folds.
bool shm_native::others_take() const noexcept {
  const collective kind = call_->kind;
  return kind == collective::reduce ? shm_.rank() != call_->root : kind != collective::reduce_scatter;
}

bool shm_native::is_direct() {
  const auto flags = [&](int rank) { return shm_.slot(rank).contributions[turn()].flags; };
  for (int p = 0; p < shm_.size(); ++p) {
    const bool in_matters = call_->kind != collective::allgather;
    const bool out_matters = call_->kind != collective::reduce_scatter && takes(p, p);
    if (in_matters && (flags(p) & contribution::registered_in) == 0) return false;
    if (out_matters && (flags(p) & contribution::registered_out) == 0) return false;
  }
  return true;
}

bool shm_native::all_show() const noexcept {
  for (int p = 0; p < shm_.size(); ++p) {
    if ((shm_.slot(p).contributions[turn()].flags & contribution::shown) == 0) return false;
  }
  return true;
}

std::byte* shm_native::laid_out(int by, std::uint64_t round, int block) noexcept {
  // By turns in all of the area: the others have just read where the collective before was, and to write there costs
  // the most.
  const std::uint64_t time = time_of(round);
  // The same place for the block of each other rank, counted from this one: the rank that read there writes there next.
  // What is folded, which all read, goes to the next rank's.
  const int ranks = shm_.size();
  const int nth = block == ranks ? block : (block - by + ranks) % ranks;
  const std::size_t place = time % depth_ * (size() + 1) + static_cast<std::size_t>(nth);
  return shm_.staging(shm_.place_of(by, time / depth_, nth == ranks ? 1 : nth)) + place * chunk_;
}

std::byte* shm_native::folded_chunk(int by, std::uint64_t round) noexcept { return laid_out(by, round, shm_.size()); }

blocks shm_native::blocks_of(const std::byte* data) const noexcept {
  return {const_cast<std::byte*>(data), call_->count, call_->element_size, shm_.size()};
}

std::span<std::byte> shm_native::chunk_of(const std::byte* data, int block, std::uint64_t round) const noexcept {
  const auto whole = blocks_of(data).at(block);
  const std::size_t begin = std::min<std::size_t>(round * chunk_, whole.size());
  return whole.subspan(begin, std::min(chunk_, whole.size() - begin));
}

// Announces that this rank is about to write into the memory of others, as long as it lives. Not of one that has given
// up: there it may be in use for something else.
class shm_native::visit {
 public:
  explicit visit(shm_native& guest) noexcept : writing_(guest.shm_.mine().writing) {
    writing_.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    welcome_ = !guest.somebody_revoked();
  }
  visit(const visit&) = delete;
  visit& operator=(const visit&) = delete;
  ~visit() { writing_.store(0, std::memory_order_release); }
  explicit operator bool() const noexcept { return welcome_; }

 private:
  std::atomic<std::uint32_t>& writing_;
  bool welcome_;
};

bool shm_native::somebody_revoked() noexcept {
  for (int p = 0; p < shm_.size(); ++p) {
    if (p != shm_.rank() && shm_.slot(p).revoked.load(std::memory_order_seq_cst) != 0) return true;
  }
  return false;
}

// ---- allreduce, reduce, reduce_scatter, allgather ----

task shm_native::exchange(flow_type& f, shm_native& s) {
  co_await f.until([&s] { return s.may_offer(); });
  s.make_offer_of_places();
  co_await f.until([&s] { return s.all_offered(); });
  s.next_peer_ = 0;
  if (s.all_show()) {
    s.complete_small();
  } else if (s.is_direct()) {
    co_await exchange_direct(f, s);
  } else {
    co_await exchange_chunks(f, s);
  }
  s.finish();
}

// ---- direct ----

// Only what is folded into memory of all can be left to any rank.
bool shm_native::folds_for_others() const noexcept {
  return shm_.host().oversubscribed() && (call_->kind == collective::allreduce || call_->kind == collective::reduce);
}

// Whether no rank had begun that block. Where its owner is in a later collective, this one has been done.
bool shm_native::claim(int block) noexcept {
  auto& claimed = shm_.slot(block).claimed;
  std::uint64_t seen = claimed.load(std::memory_order_relaxed);
  return seen < step(1) && claimed.compare_exchange_strong(seen, step(1), std::memory_order_relaxed);
}

// False when another rank has given up.
bool shm_native::write_to_others(int block, std::size_t begin, std::size_t bytes) {
  const visit here(*this);
  if (!here) return false;
  const collective_call& c = *call_;
  const std::size_t offset = block_of(c.count, block, shm_.size()).first * c.element_size;
  std::size_t outs = 0;
  for (int p = 0; p < shm_.size(); ++p) {
    const auto& place = shm_.slot(p).contributions[turn()].place;
    const int on_host = shm_.host_rank(p);
    const auto at = [&](std::uint64_t base) { return shm_.host().at(on_host, base) + offset + begin; };
    if (c.kind != collective::allgather) peers_in_[static_cast<std::size_t>(p)] = at(place.in);
    if (takes(p, block)) peers_out_[outs++] = c.kind == collective::reduce_scatter ? c.out + begin : at(place.out);
  }
  const std::span<std::byte* const> to(peers_out_.data(), outs);
  if (c.kind != collective::allgather) {
    c.reduce.fold(to, peers_in_, bytes);
    return true;
  }
  for (std::byte* const out : to) {
    if (out != c.in + begin) copy_bytes(out, c.in + begin, bytes);
  }
  return true;
}

bool shm_native::fold_block(int block) {
  const std::size_t size = blocks_of(nullptr).at(block).size();
  for (std::size_t begin = 0; begin < size; begin += visit_bytes) {
    if (!write_to_others(block, begin, std::min(visit_bytes, size - begin))) return false;
  }
  return true;
}

task shm_native::exchange_direct(flow_type& f, shm_native& s) {
  const int blocks = s.folds_for_others() ? s.shm_.size() : 1;
  for (int k = 0; k < blocks; ++k) {
    const int block = (s.shm_.rank() + k) % s.shm_.size();
    if (!s.claim(block)) continue;
    if (!s.fold_block(block)) co_await f.until([] { return false; });  // the control message is on its way
    s.reach(s.shm_.slot(block).folded, 1);
  }
  co_await f.until([&s] {
    return s.shm_.mine().folded.load(std::memory_order_acquire) >= s.step(1) && s.all_at(&slot_head::folded, 1);
  });
}

// ---- through the staging areas ----

// So many bytes go in rounds of a chunk, or several, in each rank's area.
void shm_native::divide(std::size_t bytes, std::size_t chunk, std::size_t in_a_round) {
  chunk_ = chunk;
  rounds_ = (bytes + chunk - 1) / chunk;
  depth_ = staging_bytes(size()) / (chunk * in_a_round);
}

void shm_native::lay_out_round(std::uint64_t round) {
  for (int p = 0; p < shm_.size(); ++p) {
    if (p == shm_.rank()) continue;
    const auto part = chunk_of(call_->in, p, round);
    if (!part.empty()) copy_bytes(laid_out(shm_.rank(), round, p), part.data(), part.size());
  }
  reach(shm_.mine().given, round + 1);
}

// Where this rank itself wants the block that it folds: empty if it does not.
std::span<std::byte> shm_native::own_result(std::uint64_t round) const noexcept {
  const int me = shm_.rank();
  if (!takes(me, me)) return {};
  if (call_->kind != collective::reduce_scatter) return chunk_of(call_->out, me, round);
  const auto part = chunk_of(nullptr, me, round);
  return {call_->out + round * chunk_, part.size()};
}

void shm_native::fold_round(std::uint64_t round) {
  const int me = shm_.rank();
  const auto mine = chunk_of(call_->in, me, round);
  const std::size_t bytes = mine.size();
  std::byte* out[2];
  std::size_t outs = 0;
  const auto own = own_result(round);
  if (!own.empty()) out[outs++] = own.data();
  if (others_take()) out[outs++] = folded_chunk(me, round);
  if (bytes == 0 || outs == 0) return;
  if (call_->kind == collective::allgather) {
    const std::byte* const from = call_->in + round * chunk_;
    for (std::size_t k = 0; k < outs; ++k) {
      if (out[k] != from) copy_bytes(out[k], from, bytes);
    }
    return;
  }
  for (int p = 0; p < shm_.size(); ++p)
    peers_in_[static_cast<std::size_t>(p)] = p == me ? mine.data() : laid_out(p, round, me);
  call_->reduce.fold({out, outs}, peers_in_, bytes);
}

void shm_native::take_round(std::uint64_t round) {
  for (int p = 0; p < shm_.size(); ++p) {
    if (p == shm_.rank() || !takes(shm_.rank(), p)) continue;
    const auto part = chunk_of(call_->out, p, round);
    if (!part.empty()) copy_bytes(part.data(), folded_chunk(p, round), part.size());
  }
}

task shm_native::exchange_chunks(flow_type& f, shm_native& s) {
  const bool lays_out = s.call_->kind != collective::allgather;
  const bool takes = s.takes(s.shm_.rank(), (s.shm_.rank() + 1) % s.shm_.size());  // the folded blocks of others
  const std::size_t largest = s.blocks_of(nullptr).at(s.shm_.size() - 1).size();
  s.divide(largest, std::min(round_up(largest, page), staging_chunk_bytes(s.size())), s.size() + 1);
  const std::uint64_t depth = s.depth_;

  co_await f.until([&s] { return s.all_finished(s.staging_used_); });
  s.staging_used_ = s.sequence_;
  if (lays_out) s.lay_out_round(0);
  for (std::uint64_t round = 0; round < s.rounds_; ++round) {
    if (lays_out && round + 1 < s.rounds_) {
      // What was laid out `depth` rounds before has been folded.
      if (round + 1 >= depth)
        co_await f.until([&s, round, depth] { return s.all_at(&slot_head::folded, round + 2 - depth); });
      s.lay_out_round(round + 1);
    }
    if (lays_out) co_await f.until([&s, round] { return s.all_at(&slot_head::given, round + 1); });
    // What was folded `depth` rounds before has been taken: a rank takes it before it lays out this round for the
    // others, and in an allgather before it folds the round before this one.
    s.fold_round(round);
    s.reach(s.shm_.mine().folded, round + 1);
    if (takes) co_await f.until([&s, round] { return s.all_at(&slot_head::folded, round + 1); });
    s.take_round(round);
  }
}

// ---- broadcast ----

task shm_native::broadcast(flow_type& f, shm_native& s) {
  const collective_call& c = *s.call_;
  const int root = c.root;
  const std::size_t bytes = c.count * c.element_size;
  const bool at_root = s.shm_.rank() == root;
  if (at_root) {
    co_await f.until([&s] { return s.may_offer(); });
    s.make_offer_of_places();
  } else {
    co_await f.until([&s, root] { return s.contributed(root); });
  }
  const contribution& from = s.shm_.slot(root).contributions[s.turn()];
  if ((from.flags & contribution::registered_in) == 0) {
    co_await broadcast_chunks(f, s);
    s.finish();
    co_return;
  }
  if (at_root) {
    s.finish();
    co_await f.until([&s] { return s.all_finished(s.sequence_); });
    co_return;
  }
  copy_out(c.out, s.shm_.host().at(s.shm_.host_rank(root), from.place.in), bytes, bytes);
  if (s.shm_.slot(root).revoked.load(std::memory_order_seq_cst) != 0) co_await f.until([] { return false; });
  s.finish();
}

task shm_native::broadcast_chunks(flow_type& f, shm_native& s) {
  const collective_call& c = *s.call_;
  const int root = c.root;
  const std::size_t bytes = c.count * c.element_size;
  // So many pieces that reading overlaps with laying out, and not so many that each is only a message.
  const std::size_t piece = round_up(bytes / broadcast_pieces, page);
  s.divide(bytes, std::clamp(piece, smallest_broadcast_chunk, largest_broadcast_chunk), 1);
  const std::uint64_t depth = s.depth_;
  if (s.shm_.rank() == root) {
    co_await f.until([&s] { return s.all_finished(s.staging_used_); });
    s.staging_used_ = s.sequence_;
  }
  for (std::uint64_t round = 0; round < s.rounds_; ++round) {
    const std::size_t begin = round * s.chunk_;
    const std::size_t n = std::min(s.chunk_, bytes - begin);
    std::byte* const chunk = s.shm_.staging(root) + s.time_of(round) % depth * s.chunk_;  // as in `laid_out`
    if (s.shm_.rank() == root) {
      if (round >= depth)
        co_await f.until([&s, round, depth] { return s.all_at(&slot_head::taken, round + 1 - depth); });
      s.shm_.host().put(chunk, c.in + begin, n, bytes);
      s.reach(s.shm_.mine().given, round + 1);
    } else {
      co_await f.until(
          [&s, root, round] { return s.shm_.slot(root).given.load(std::memory_order_acquire) >= s.step(round + 1); });
      copy_out(c.out + begin, chunk, n, bytes);
      s.reach(s.shm_.mine().taken, round + 1);
    }
  }
}

}}}  // namespace muster::v0::detail
