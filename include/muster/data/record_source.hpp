// The interface of every reader of records, and one type for all readers.
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
#include <muster/data/source_statistics.hpp>

namespace muster { inline namespace v0 { namespace data {

namespace detail {

class proportions;

/// Replaces -0 by 0. Returns true if all labels are finite.
[[nodiscard]] bool canonicalize_labels(std::span<float> labels) noexcept;

/// The properties of a source that do not change during its life.
struct source_facts {
  std::string name;
  std::uint64_t size = 0;
  std::uint64_t digest = 0;
  record_schema schema;
  std::vector<std::string> notes = {};
  table_names columns = {};
};

/// A base class with the accessors of source_facts.
class source_with_facts {
 public:
  /// Accessors as required by record_source.
  [[nodiscard]] const std::string& name() const noexcept { return facts_->name; }
  [[nodiscard]] std::uint64_t size() const noexcept { return facts_->size; }
  [[nodiscard]] std::uint64_t digest() const noexcept { return facts_->digest; }
  [[nodiscard]] const record_schema& schema() const noexcept { return facts_->schema; }
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return facts_->notes; }
  [[nodiscard]] const table_names& columns() const noexcept { return facts_->columns; }

 protected:
  const source_facts* facts_ = nullptr;  // part of the state that copies of the source share
};

}  // namespace detail

/// The destination of a batch of records. Either member may be empty. Then that part of the records is not read.
struct record_rows {
  std::span<std::byte> bytes;  ///< the records, one after another without gaps
  /// labels of record k: schema().labels.size() floats from index k * schema().labels.size() on
  std::span<float> labels;
};

/// The requirements on a source: records that can be read in any order. A source is a value. A copy is cheap and shares
/// the opened state. Any number of threads may call its functions at once.
///
/// - name(): the specification from which the source was opened, for messages: "cifar10:/data/cifar10".
/// - size(): the number of records, fixed when the source is opened.
/// - digest(): identifies the data by content alone. Two sources that hold the same records with the same schema have
///   the same digest on every machine, wherever the files are stored. Each source documents the part of the content
///   that enters its digest. O(1).
/// - schema(): the structure of a record.
/// - sizes(ids, out): writes the size in bytes of every record, out.size() == ids.size(). O(1) a record.
/// - read(ids, rows, bad): copies records and labels in the order of `ids`, which may repeat. A record that cannot be
///   used is appended to `*bad` (once for each time it is in `ids`, in that order), and its bytes and labels are zero.
///   If `bad` is null, such a record is a data_error that names file and place.
///
/// Preconditions, which are not checked: ids are below size(), and the spans are large enough.
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

/// A source whose records are in memory in their final form if mapped() returns true. The result of mapped() is
/// constant (for a compressed file it is false). Then view(id) returns the record itself, valid as long as a copy of
/// the source exists, or throws a data_error that names file and place if the record cannot be used. Views are aligned
/// to the elements only if the format is aligned: muster's own format is; CIFAR's records of 3,073 bytes hold uint8 and
/// need no alignment.
template <class T>
concept mapped_record_source = record_source<T> && requires(const T& source, sample_id id) {
  { source.mapped() } -> std::same_as<bool>;
  { source.view(id) } -> std::same_as<std::span<const std::byte>>;
};

/// Any record_source, selected at run time. A batch costs one virtual call, not one a record. Copies are cheap.
class any_record_source {
 public:
  /// Owns the source. Copies share it. The order of the requirements matters: the test for being a source must not
  /// depend on its own result.
  template <class Source>
  requires(!std::same_as<Source, any_record_source> && record_source<Source>)
      any_record_source(Source source)  // NOLINT: meant to convert
      : source_(std::make_shared<const model<Source>>(std::move(source))) {}

  /// Accessors as required by record_source. Name and schema are valid as long as a copy of the object exists.
  [[nodiscard]] std::string_view name() const noexcept { return source_->name; }
  [[nodiscard]] std::uint64_t size() const noexcept { return source_->size; }
  [[nodiscard]] std::uint64_t digest() const noexcept { return source_->digest; }
  [[nodiscard]] const record_schema& schema() const noexcept { return source_->schema; }
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const { source_->sizes(ids, out); }
  /// Reads records and labels as record_source requires. A record with a label that is not finite is bad, even if its
  /// source does not report it. A label of -0 becomes 0.
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const {
    const std::size_t bad_before = bad == nullptr ? 0 : bad->size();
    source_->read(ids, rows, bad);
    if (!detail::canonicalize_labels(rows.labels)) refuse(ids, rows, bad, bad_before, nullptr);
  }

  /// Returns the assumptions made at opening and the entries left out: one sentence each, as logged.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return source_->notes; }

  /// Returns the names of the columns if the source is a table.
  [[nodiscard]] const detail::table_names& columns() const noexcept { return source_->columns; }

  /// Returns the number of records that cannot be used, if the number is known without reading records: for text that
  /// was read in full.
  [[nodiscard]] std::optional<std::uint64_t> known_bad() const noexcept { return source_->known_bad; }

  /// Returns statistics of the first records, if the source has statistics without reading records. See statistics().
  [[nodiscard]] std::optional<source_statistics> known_statistics() const { return source_->known_statistics(); }

  /// Returns the current number of records in the newest version of a source that was opened to follow additions by
  /// other processes. Returns 0 if the source is not followed. Throws errors of looking up the version.
  [[nodiscard]] std::uint64_t newest() const { return source_->newest(); }
  /// Returns the number of batches after which new records join an epoch of a followed source. 0: new records join at
  /// the next epoch.
  [[nodiscard]] std::uint64_t follows_every() const { return source_->follows_every; }
  /// Returns the version of a followed source that has `records` records. Every later version begins with these
  /// records.
  [[nodiscard]] any_record_source version(std::uint64_t records) const { return source_->version(records); }

  /// Returns a value that distinguishes states of the data on this host, as of opening, for data whose digest does not
  /// cover all bytes. A cache or a conversion on this host includes it in its key. It is computed from the sizes,
  /// times, inodes and devices of files. It therefore differs after a copy and on another host, where the digest is the
  /// same. Returns nothing if a change would not be detected, as for a query. Returns 0 for a source without
  /// host_state(), whose digest covers all bytes.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const noexcept { return source_->host_state; }
  /// Returns the current value of host_state(). It differs from host_state() if the data have changed since opening.
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const { return source_->host_state_now(); }

  /// Returns the location of a record for messages: the location that the source reports, or else the source's name and
  /// the record's number.
  [[nodiscard]] data_location location_of(sample_id id) const { return source_->location_of(id); }

  /// Returns the shards that this process can read, for a source in shards. See held_shards.
  [[nodiscard]] held_shards available_shards() const { return source_->available_shards(); }

  /// Returns the order of the component sources of a mixture, or of the shards of a source in shards.
  [[nodiscard]] const std::shared_ptr<const detail::proportions>& mixture_order() const noexcept {
    return source_->mixture_order;
  }

  /// Returns the number of neighbouring records that should be read close together in time, for records that are read
  /// in blocks, such as text that is parsed. 0: no preference.
  [[nodiscard]] std::uint64_t block_records() const noexcept { return source_->block_records; }

  /// Announces that these records will be read soon. The source starts to fetch remote data in the background.
  void expect(std::span<const sample_id> ids) const { source_->expect(ids); }

  /// Marks records that were just read as bad: each record for whose labels `problem` returns a text, or, if `problem`
  /// is null, each record with a label that is not finite. `bad_before` is the number of entries in `*bad` before the
  /// read.
  void refuse(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad,
              std::size_t bad_before, const std::function<std::string(std::span<const float>)>& problem) const;

  /// Returns true if views() works: the records are in memory in their final form.
  [[nodiscard]] bool mapped() const noexcept { return source_->mapped; }
  /// Writes the views of the records in a mapped source to `out`, out.size() == ids.size(). A record that cannot be
  /// used is appended to `*bad` and has an empty view. If `bad` is null, such a record is a data_error.
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
    [[nodiscard]] virtual held_shards available_shards() const = 0;
    [[nodiscard]] virtual data_location location_of(sample_id id) const = 0;
    [[nodiscard]] virtual std::uint64_t newest() const = 0;
    [[nodiscard]] virtual any_record_source version(std::uint64_t records) const = 0;
    [[nodiscard]] virtual std::optional<std::uint64_t> host_state_now() const = 0;
    // Constant during the life of the source, like source_facts.
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
    data_location location_of(sample_id id) const override {
      if constexpr (requires { source.location_of(id); }) return source.location_of(id);
      return {this->name + ", record " + std::to_string(id)};
    }
    held_shards available_shards() const override {
      if constexpr (requires { source.available_shards(); }) return source.available_shards();
      return {};
    }
    std::uint64_t newest() const override {
      if constexpr (requires { source.newest(); }) return source.newest();
      return 0;
    }
    any_record_source version(std::uint64_t records) const override {
      if constexpr (requires { source.version(records); }) return source.version(records);
      throw configuration_error(this->name + " has a single version (it is not followed); open it with follow=1");
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
        throw configuration_error("the records of " + this->name + " have no views (mapped() is false); use read()");
      }
    }
    Source source;
  };

  std::shared_ptr<const interface> source_;
};
static_assert(record_source<any_record_source>);

namespace detail {

/// A run of neighbouring records with their contents.
struct record_run {
  std::vector<std::uint64_t> sizes;
  std::vector<std::byte> bytes;
  std::vector<float> labels;
  std::vector<bad_record> bad;

  /// Reads `count` records from `first` on, into the present buffers. Bad records are errors, or kept with `keep_bad`.
  /// A sparse record with invalid indices is bad. A sparse record that ends within an entry is an error. With
  /// `as_features` a record with a number that is infinite as a float32 is bad, too.
  void read(const any_record_source& source, sample_id first, std::uint64_t count, bool keep_bad = true,
            bool as_features = true);
};

/// Prefetches a record that is used next into the processor's cache. In a shuffled order the record may be anywhere.
/// The processor's own prefetcher, which restarts at every page, would be late for most of the record.
inline void fetch_ahead(std::span<const std::byte> record) noexcept {
  constexpr std::size_t line = 64;
  constexpr std::size_t most = 64 * line;  // the hardware prefetcher loads the rest
  for (std::size_t at = 0; at < record.size() && at < most; at += line) __builtin_prefetch(record.data() + at, 0, 2);
}

}  // namespace detail

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::any_record_source;
using data::record_rows;
using data::record_source;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
