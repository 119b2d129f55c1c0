// What every reader of records offers, and one type for all of them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/data/bad_records.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/cursor.hpp>  // sample_id
#include <muster/data/record_schema.hpp>
#include <muster/data/statistics.hpp>

namespace muster { inline namespace v0 {

namespace detail {

class proportions;

/// Replaces -0 by 0, and returns whether all labels are finite.
[[nodiscard]] bool settle_labels(std::span<float> labels) noexcept;

/// What stays for the life of a source.
struct source_facts {
  std::string name;
  std::uint64_t size = 0;
  std::uint64_t digest = 0;
  record_schema schema;
  std::vector<std::string> notes = {};
  table_names columns = {};
};

/// The part of a record_source that says so.
class source_with_facts {
 public:
  /// As record_source has them.
  [[nodiscard]] const std::string& name() const noexcept { return facts_->name; }
  [[nodiscard]] std::uint64_t size() const noexcept { return facts_->size; }
  [[nodiscard]] std::uint64_t digest() const noexcept { return facts_->digest; }
  [[nodiscard]] const record_schema& schema() const noexcept { return facts_->schema; }
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return facts_->notes; }
  [[nodiscard]] const table_names& columns() const noexcept { return facts_->columns; }

 protected:
  const source_facts* facts_ = nullptr;  // a part of what copies of the source share
};

}  // namespace detail

/// Where a batch of records goes. Either part may be empty, and then is not read.
struct record_rows {
  std::span<std::byte> bytes;  ///< one record behind another, without a gap
  std::span<float> labels;     ///< of record k: schema().labels.size() floats from k * that number on
};

/// Records that can be read in any order. A source is a value: a copy is cheap and shares what was opened; all of its
/// functions may be called by any number of threads at once.
///
/// - name(): what it was opened from, for messages: "cifar10:/data/cifar10".
/// - size(): the number of records, frozen when it was opened.
/// - digest(): tells data apart, and is of content alone. Two sources that hold the same records of the same schema
/// have the same digest on every
///   machine, wherever the files lie; how much of them it looks at is said by each source. O(1).
/// - schema(): what a record is.
/// - sizes(ids, out): the bytes of each record, out.size() == ids.size(). O(1) a record.
/// - read(ids, rows, bad): copies records, and labels, in the order of `ids`, which may repeat. A record that cannot be
///   used is appended to `*bad` (once for each time it is in `ids`, in that order), and its bytes and labels are zero;
///   without a `bad` (null) it is a data_error that names file and place.
///
/// Ids are below size(), and the spans are large enough: neither is checked.
template <class T>
concept record_source = std::copyable<T> &&
    requires(const T& source, std::span<const sample_id> ids, const record_rows& rows, std::span<std::uint64_t> sizes,
             std::vector<bad_record>* bad) {
  { source.name() } -> std::convertible_to<std::string_view>;
  { source.size() } -> std::convertible_to<std::uint64_t>;
  { source.digest() } -> std::convertible_to<std::uint64_t>;
  { source.schema() } -> std::convertible_to<const record_schema&>;
  source.sizes(ids, sizes);
  source.read(ids, rows, bad);
};

/// A source with records that lie in memory as they are, if mapped() says so (the same for all of its life: a
/// compressed file says no). Then view(id) is the record itself, valid as long as a copy of the source is, or a
/// data_error that names file and place if it cannot be used. Views are aligned to the elements only where the format
/// is: muster's own is; CIFAR's records of 3,073 bytes hold uint8 and need no alignment.
template <class T>
concept mapped_record_source = record_source<T> && requires(const T& source, sample_id id) {
  { source.mapped() } -> std::same_as<bool>;
  { source.view(id) } -> std::same_as<std::span<const std::byte>>;
};

/// Any record_source, chosen at run time: one virtual call a batch, not one a record. Cheap to copy.
class any_record_source {
 public:
  /// Owns the source; copies share it. The order of the requirements matters: whether this class is a source must not
  /// depend on whether it is one.
  template <class Source>
  requires(!std::same_as<Source, any_record_source> && record_source<Source>)
      any_record_source(Source source)  // NOLINT: meant to convert
      : source_(std::make_shared<const model<Source>>(std::move(source))) {}

  /// As record_source has them. Name and schema are valid as long as a copy of this.
  [[nodiscard]] std::string_view name() const noexcept { return source_->name; }
  [[nodiscard]] std::uint64_t size() const noexcept { return source_->size; }
  [[nodiscard]] std::uint64_t digest() const noexcept { return source_->digest; }
  [[nodiscard]] const record_schema& schema() const noexcept { return source_->schema; }
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const { source_->sizes(ids, out); }
  /// A record with a label that is not finite is bad, even if its source does not report it, and a label of -0 becomes
  /// 0.
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const {
    const std::size_t bad_before = bad == nullptr ? 0 : bad->size();
    source_->read(ids, rows, bad);
    if (!detail::settle_labels(rows.labels)) refuse(ids, rows, bad, bad_before, nullptr);
  }

  /// Guesses that were made at opening, and entries that were left out: a sentence each, as they were logged.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return source_->notes; }

  /// Names of the columns, if the source is a table.
  [[nodiscard]] const detail::table_names& columns() const noexcept { return source_->columns; }

  /// How many records cannot be used, where that is known without reading any: of text, which was read as a whole.
  [[nodiscard]] std::optional<std::uint64_t> known_bad() const noexcept { return source_->known_bad; }

  /// Statistics of the first records, where the source has them without reading any; see statistics().
  [[nodiscard]] std::optional<source_statistics> known_statistics() const { return source_->known_statistics(); }

  /// Records in the newest version of a source that others add to and that was opened to follow them, as it is now;
  /// 0: it is not followed. Throws what looking for it throws.
  [[nodiscard]] std::uint64_t newest() const { return source_->newest(); }
  /// Of a followed source: after so many batches new records join an epoch; 0: they are of the next one.
  [[nodiscard]] std::uint64_t follows_every() const { return source_->follows_every; }
  /// The version of a followed source that has so many records, which are its first ones in every later version.
  [[nodiscard]] any_record_source version(std::uint64_t records) const { return source_->version(records); }

  /// Tells the states of the data on this host apart, as they were opened, where the digest does not look at all of
  /// them: what a cache or a conversion of this host has in its own key. Of the sizes, times, inodes and devices of
  /// files, so it differs after a copy and on another host, where the digest is the same. Nothing where a change would
  /// not be known: of a query. 0 for a source that has no host_state(), whose digest says all.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const noexcept { return source_->host_state; }
  /// The same as it is now: another one than host_state() when the data have changed since they were opened.
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const { return source_->host_state_now(); }

  /// Where a record lies, for messages: what the source says, or its name and the record's number.
  [[nodiscard]] data_location where(sample_id id) const { return source_->where(id); }

  /// Of a source in shards: which of them this process can read; see held_shards.
  [[nodiscard]] held_shards held() const { return source_->held(); }

  /// Of a mixture, or shards: the order of its sources.
  [[nodiscard]] const std::shared_ptr<const detail::proportions>& mixture_order() const noexcept {
    return source_->mixture_order;
  }

  /// For records that are read in blocks, as text is parsed: so many neighbours are best read one soon after another.
  /// 0: none are.
  [[nodiscard]] std::uint64_t block_records() const noexcept { return source_->block_records; }

  /// These records will be wanted: what has to be fetched from afar comes meanwhile.
  void expect(std::span<const sample_id> ids) const { source_->expect(ids); }

  /// Makes records bad that were just read: each record for which `problem` returns a text for its labels, or, if
  /// `problem` is null, each with a label that is not finite. `*bad` had `bad_before` entries before the read.
  void refuse(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad,
              std::size_t bad_before, const std::function<std::string(std::span<const float>)>& problem) const;

  /// Whether views() works: records lie in memory as they are.
  [[nodiscard]] bool mapped() const noexcept { return source_->mapped; }
  /// The view of each record of a mapped source, out.size() == ids.size(). A record that cannot be used is appended to
  /// `*bad` and has an empty view; without a `bad` it is a data_error.
  void views(std::span<const sample_id> ids, std::span<std::span<const std::byte>> out,
             std::vector<bad_record>* bad = nullptr) const {
    source_->views(ids, out, bad);
  }

 private:
  struct interface : detail::source_facts {
    virtual ~interface() = default;
    virtual void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const = 0;
    virtual void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad) const = 0;
    virtual void views(std::span<const sample_id> ids, std::span<std::span<const std::byte>> out,
                       std::vector<bad_record>* bad) const = 0;
    virtual void expect(std::span<const sample_id> ids) const = 0;
    [[nodiscard]] virtual std::optional<source_statistics> known_statistics() const = 0;
    [[nodiscard]] virtual held_shards held() const = 0;
    [[nodiscard]] virtual data_location where(sample_id id) const = 0;
    [[nodiscard]] virtual std::uint64_t newest() const = 0;
    [[nodiscard]] virtual any_record_source version(std::uint64_t records) const = 0;
    [[nodiscard]] virtual std::optional<std::uint64_t> host_state_now() const = 0;
    // These stay, too.
    std::optional<std::uint64_t> known_bad, host_state = 0;
    std::uint64_t block_records = 0, follows_every = 0;
    std::shared_ptr<const detail::proportions> mixture_order;
    bool mapped = false;
  };

  template <class Source>
  struct model final : interface {
    explicit model(Source wrapped) : source(std::move(wrapped)) {
      static_cast<detail::source_facts&>(*this) = {std::string(source.name()), source.size(), source.digest(),
                                                   source.schema()};
      if constexpr (requires { source.notes().size(); }) this->notes = source.notes();
      if constexpr (requires { source.columns().features; }) this->columns = source.columns();
      if constexpr (requires { source.bad().size(); }) known_bad = source.bad().size();
      if constexpr (requires { source.host_state_now(); }) host_state = source.host_state();
      if constexpr (requires { source.block_records(); }) block_records = source.block_records();
      if constexpr (requires { source.follows_every(); }) follows_every = source.follows_every();
      if constexpr (requires { source.mixture_order(); }) mixture_order = source.mixture_order();
      if constexpr (mapped_record_source<Source>) mapped = source.mapped();
    }
    void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const override { source.sizes(ids, out); }
    void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad) const override {
      source.read(ids, rows, bad);
    }
    void expect(std::span<const sample_id> ids) const override {
      if constexpr (requires { source.expect(ids); }) source.expect(ids);
    }
    std::optional<source_statistics> known_statistics() const override {
      if constexpr (requires { source.known_statistics(); }) return source.known_statistics();
      return std::nullopt;
    }
    data_location where(sample_id id) const override {
      if constexpr (requires { source.where(id); }) return source.where(id);
      return {this->name + ", record " + std::to_string(id)};
    }
    held_shards held() const override {
      if constexpr (requires { source.held(); }) return source.held();
      return {};
    }
    std::uint64_t newest() const override {
      if constexpr (requires { source.newest(); }) return source.newest();
      return 0;
    }
    any_record_source version(std::uint64_t records) const override {
      if constexpr (requires { source.version(records); }) return source.version(records);
      throw configuration_error("there is one version of " + this->name +
                                " alone (it is not followed); open it with follow=1");
    }
    std::optional<std::uint64_t> host_state_now() const override {
      if constexpr (requires { source.host_state_now(); }) return source.host_state_now();
      return this->host_state;
    }
    void views(std::span<const sample_id> ids, std::span<std::span<const std::byte>> out,
               std::vector<bad_record>* bad) const override {
      if constexpr (mapped_record_source<Source>) {
        for (std::size_t k = 0; mapped && k < ids.size(); ++k) {
          out[k] = {};
          try {
            out[k] = source.view(ids[k]);
          } catch (const data_error& error) {
            if (bad == nullptr) throw;
            bad->push_back({ids[k], error.where(), error.problem()});
          }
        }
      }
      if (!mapped) {
        throw configuration_error("the records of " + this->name +
                                  " do not lie in memory as they are (mapped() is false); use read()");
      }
    }
    Source source;
  };

  std::shared_ptr<const interface> source_;
};
static_assert(record_source<any_record_source>);

namespace detail {

/// Neighbours, as they were read.
struct record_run {
  std::vector<std::uint64_t> sizes;
  std::vector<std::byte> bytes;
  std::vector<float> labels;
  std::vector<bad_record> bad;

  /// Reads `count` records from `first` on, into the memory that is there; bad ones are errors, or kept. A sparse
  /// record with indices that are wrong is bad; one that ends amid an entry is an error. With
  /// `as_features` a record with a number beyond float32 is bad, too.
  void read(const any_record_source& source, sample_id first, std::uint64_t count, bool keep_bad = true,
            bool as_features = true);
};

/// Asks the processor for a record that comes next. In a shuffled order it lies anywhere, and the processor's own
/// prefetcher, which begins anew at every page, would be late for most of it.
inline void fetch_ahead(std::span<const std::byte> record) noexcept {
  constexpr std::size_t line = 64;
  constexpr std::size_t most = 64 * line;  // the rest is foreseen
  for (std::size_t at = 0; at < record.size() && at < most; at += line) __builtin_prefetch(record.data() + at, 0, 2);
}

}  // namespace detail

}}  // namespace muster::v0
