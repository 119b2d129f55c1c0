#include <muster/train/scatter_records.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/scatter.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

#include "../data/records/layout.hpp"
#include "octets.hpp"

namespace muster::inline v0 {

struct record_shard::state {
  std::string name;
  record_schema schema;
  std::uint64_t digest = 0;
  std::vector<sample_id> ids;
  std::vector<std::uint64_t> begins;
  std::vector<std::uint64_t> lengths;
  std::vector<float> labels;
  buffer<std::byte> bytes;
};

std::string_view record_shard::name() const noexcept { return state_->name; }
std::uint64_t record_shard::size() const noexcept { return state_->ids.size(); }
std::uint64_t record_shard::digest() const noexcept { return state_->digest; }
const record_schema& record_shard::schema() const noexcept { return state_->schema; }
std::span<const sample_id> record_shard::ids() const noexcept { return state_->ids; }
std::span<const std::byte> record_shard::view(sample_id id) const noexcept {
  return state_->bytes.span().subspan(state_->begins[id], state_->lengths[id]);
}
void record_shard::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept {
  for (std::size_t k = 0; k < ids.size(); ++k) out[k] = state_->lengths[ids[k]];
}
void record_shard::read(std::span<const sample_id> ids, const record_rows& rows,
                        std::vector<bad_record>*) const noexcept {
  const std::size_t width = state_->schema.labels.size();
  std::byte* to = rows.bytes.data();
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (!rows.labels.empty())
      std::copy_n(state_->labels.data() + ids[k] * width, width, rows.labels.data() + k * width);
    if (rows.bytes.empty()) continue;
    const auto from = view(ids[k]);
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
    to += rows.stride != 0 ? rows.stride : from.size();
  }
}

namespace {

constexpr std::size_t piece = std::size_t{1} << 20;  // to each rank at a time

// What everybody is told first, and what each rank is told of its own part.
struct announcement {
  std::uint64_t failed, schema, name, digest;
};
struct extent {
  std::uint64_t records, room, bytes;  // of the memory that they take, and of what is sent
};
struct record_head {
  std::uint64_t id, size;
};

std::uint64_t room_of(std::uint64_t size) {
  const std::uint64_t alignment = size < 1024 ? 8 : buffer_alignment;
  return (size + alignment - 1) / alignment * alignment;
}

/// What the root sends to one rank: record after record, each with its id, size and labels before it.
class sender {
 public:
  sender(const any_record_source& source, std::vector<sample_id> ids) : source_(source), ids_(std::move(ids)) {
    sizes_.resize(ids_.size());
    source_.sizes(ids_, sizes_);
    extent_.records = ids_.size();
    for (const std::uint64_t size : sizes_) {
      extent_.room += room_of(size);
      extent_.bytes += sizeof(record_head) + source_.schema().labels.size() * sizeof(float) + size;
    }
  }
  [[nodiscard]] const extent& all() const noexcept { return extent_; }

  /// The next bytes, as many as fit.
  void fill(std::span<std::byte> to) {
    while (!to.empty()) {
      if (sent_ == pending_.size()) {
        if (next_ == ids_.size()) return;
        prepare();
      }
      const std::size_t count = std::min(to.size(), pending_.size() - sent_);
      std::memcpy(to.data(), pending_.data() + sent_, count);
      to = to.subspan(count);
      sent_ += count;
    }
  }

 private:
  void prepare() {
    const std::size_t label_bytes = source_.schema().labels.size() * sizeof(float);
    const record_head head{ids_[next_], sizes_[next_]};
    pending_.resize(sizeof head + label_bytes + head.size);
    labels_.resize(source_.schema().labels.size());
    std::memcpy(pending_.data(), &head, sizeof head);
    const std::span<std::byte> record(pending_.data() + sizeof head + label_bytes, head.size);
    source_.read(std::span(&ids_[next_], 1), {record, 0, labels_});
    if (label_bytes != 0) std::memcpy(pending_.data() + sizeof head, labels_.data(), label_bytes);
    sent_ = 0;
    ++next_;
  }

  const any_record_source& source_;
  std::vector<sample_id> ids_;
  std::vector<std::uint64_t> sizes_;
  extent extent_{};
  std::size_t next_ = 0;
  std::vector<std::byte> pending_;
  std::vector<float> labels_;
  std::size_t sent_ = 0;
};

/// What the root of a scatter_records() does before and beside the others.
class root_side {
 public:
  root_side(const any_record_source& source, int ranks, const scatter_records_options& chosen) {
    if (chosen.block == 0) throw configuration_error("blocks of 0 records cannot be sent; use at least 1");
    std::vector<std::uint64_t> parts;
    for (std::uint64_t first = 0; first < source.size(); first += chosen.block) {
      parts.push_back(std::min(chosen.block, source.size() - first));
    }
    const placement placed(parts, static_cast<std::size_t>(ranks), chosen.how);
    for (std::size_t rank = 0; rank < placed.machines(); ++rank) {
      std::vector<sample_id> ids;
      for (const std::size_t part : placed.parts_of(rank)) {
        for (std::uint64_t i = 0; i < parts[part]; ++i) ids.push_back(part * chosen.block + i);
      }
      senders_.emplace_back(source, std::move(ids));
      extents_.push_back(senders_.back().all());
    }
  }
  [[nodiscard]] const std::vector<extent>& extents() const noexcept { return extents_; }
  /// A piece for each rank.
  void fill(std::span<std::byte> pieces) {
    for (std::size_t rank = 0; rank < senders_.size(); ++rank) senders_[rank].fill(pieces.subspan(rank * piece, piece));
  }

 private:
  std::vector<sender> senders_;
  std::vector<extent> extents_;
};

/// The error that a rank throws for the root's.
[[noreturn]] void fail_with_root(int root) {
  throw data_error({"scatter_records"},
                   "rank " + std::to_string(root) + " could not go on (its own error says why); see there");
}

}  // namespace

/// Puts a shard together from the pieces that come.
class detail::shard_receiver {
 public:
  shard_receiver(std::string name, record_schema schema, std::uint64_t digest_of_source, const extent& all)
      : made_(std::make_shared<record_shard::state>()), left_(all.bytes) {
    made_->name = std::move(name);
    made_->schema = std::move(schema);
    made_->digest = digest_of_source;
    made_->bytes = buffer<std::byte>(std::max<std::size_t>(all.room, 1));
    made_->ids.reserve(all.records);
  }

  void take(std::span<const std::byte> bytes) {
    bytes = bytes.first(std::min<std::uint64_t>(bytes.size(), left_));
    left_ -= bytes.size();
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    const std::size_t label_bytes = made_->schema.labels.size() * sizeof(float);
    std::size_t at = 0;
    for (record_head head; pending_.size() - at >= sizeof head; at += sizeof head + label_bytes + head.size) {
      std::memcpy(&head, pending_.data() + at, sizeof head);
      if (pending_.size() - at < sizeof head + label_bytes + head.size) break;
      const std::byte* const labels = pending_.data() + at + sizeof head;
      const std::size_t first = made_->labels.size();
      made_->labels.resize(first + made_->schema.labels.size());
      if (label_bytes != 0) std::memcpy(made_->labels.data() + first, labels, label_bytes);
      if (head.size != 0) std::memcpy(made_->bytes.data() + used_, labels + label_bytes, head.size);
      made_->ids.push_back(head.id);
      made_->begins.push_back(used_);
      made_->lengths.push_back(head.size);
      used_ += room_of(head.size);
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  [[nodiscard]] record_shard finish() {
    digest all;
    all.add(made_->digest);
    for (const sample_id id : made_->ids) all.add(id);
    made_->digest = all.value();
    record_shard shard;
    shard.state_ = std::move(made_);
    return shard;
  }

 private:
  std::shared_ptr<record_shard::state> made_;
  std::uint64_t left_;
  std::uint64_t used_ = 0;
  std::vector<std::byte> pending_;
};

record_shard scatter_records(group& ranks, const any_record_source* source, int root,
                             const scatter_records_options& chosen) {
  const bool is_root = ranks.rank() == root;
  const auto size = static_cast<std::size_t>(ranks.size());
  std::optional<root_side> mine;
  std::string text;  // schema and name
  announcement told{};
  std::exception_ptr failure;
  if (is_root) {
    try {
      if (source == nullptr) throw configuration_error("the root has no source of records to send; give it one");
      mine.emplace(*source, ranks.size(), chosen);
      text = detail::records::schema_to_json(source->schema());
      told = {0, text.size(), source->name().size(), source->digest()};
      text += source->name();
    } catch (...) {
      failure = std::current_exception();
      told.failed = 1;
    }
  }
  const auto words = [](announcement& all) { return std::span(&all.failed, 4); };
  broadcast(ranks, words(told), root, chosen.calls);
  if (failure) std::rethrow_exception(failure);
  if (told.failed != 0) fail_with_root(root);
  text.resize(told.schema + told.name);
  broadcast(ranks, detail::octets(std::as_writable_bytes(std::span(text))), root, chosen.calls);

  std::vector<std::uint64_t> extents;  // of three words each, and how much the largest is
  if (is_root) {
    for (const extent& one : mine->extents()) extents.insert(extents.end(), {one.records, one.room, one.bytes});
  }
  extents.resize(3 * size);
  broadcast(ranks, std::span(extents), root, chosen.calls);
  const std::size_t own = 3 * static_cast<std::size_t>(ranks.rank());
  const extent here{extents[own], extents[own + 1], extents[own + 2]};
  std::uint64_t most = 0;
  for (std::size_t rank = 0; rank < size; ++rank) most = std::max(most, extents[3 * rank + 2]);

  detail::shard_receiver receiver(text.substr(told.schema),
                                  detail::records::schema_from_json(text.substr(0, told.schema), "scatter_records", 0),
                                  told.digest, here);
  // A piece ends with a byte that says whether the root could fill it.
  std::vector<std::byte> pieces(is_root ? size * (piece + 1) : 0);
  std::vector<std::byte> filled(is_root ? size * piece : 0);
  std::vector<std::byte> arrived(piece + 1);
  for (std::uint64_t done = 0; done < most; done += piece) {
    if (is_root) {
      try {
        mine->fill(filled);
      } catch (...) {
        failure = std::current_exception();
      }
      for (std::size_t rank = 0; rank < size; ++rank) {
        std::memcpy(pieces.data() + rank * (piece + 1), filled.data() + rank * piece, piece);
        pieces[rank * (piece + 1) + piece] = std::byte{failure ? std::uint8_t{1} : std::uint8_t{0}};
      }
    }
    scatter(ranks, detail::octets(pieces), detail::octets(arrived), root, chosen.calls);
    if (failure) std::rethrow_exception(failure);
    if (arrived[piece] != std::byte{0}) fail_with_root(root);
    receiver.take(std::span(arrived).first(piece));
  }
  return receiver.finish();
}

}  // namespace muster::inline v0
