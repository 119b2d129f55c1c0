#pragma once

#include <muster/data/arrow.hpp>

#include <cerrno>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

/// A node of an exported schema or array, with the memory that the node's pointers name. Each node owns its own memory,
/// since a consumer may move a child out of its parent.
template <class Struct>
struct arrow_node {
  struct releases {
    void operator()(Struct* child) const noexcept {
      if (child->release != nullptr) child->release(child);  // the consumer may have moved or released it
      delete child;
    }
  };
  Struct root{};
  std::deque<std::unique_ptr<Struct, releases>> children{};
  std::vector<Struct*> pointers{};
  std::vector<const void*> buffers{};
  std::vector<std::byte> memory{};
  std::vector<std::int64_t> ends{};
  std::string format{}, name{};

  /// Moves the node's memory behind the returned struct, whose release() frees it.
  static Struct exported(arrow_node node) {
    auto owned = std::make_unique<arrow_node>(std::move(node));
    for (auto& child : owned->children) owned->pointers.push_back(child.get());
    Struct result = owned->root;
    result.n_children = static_cast<std::int64_t>(owned->pointers.size());
    result.children = owned->pointers.data();
    if constexpr (requires { result.format; }) {
      result.format = owned->format.c_str();
      result.name = owned->name.c_str();
    } else {
      result.n_buffers = static_cast<std::int64_t>(owned->buffers.size());
      result.buffers = owned->buffers.data();
    }
    result.private_data = owned.release();
    result.release = [](Struct* released) {
      delete static_cast<arrow_node*>(released->private_data);
      released->release = nullptr;
    };
    return result;
  }
  void add(Struct child) { children.emplace_back(new Struct(child)); }
};
using schema_node = arrow_node<ArrowSchema>;
using array_node = arrow_node<ArrowArray>;

/// The columns of a source as an Arrow table: parts of the records, then the labels.
struct arrow_export {
  any_record_source source;
  std::uint64_t rows, next = 0;
  std::string problem = {};

  /// A column with `shape` numbers of a type, at `offset` in a record.
  struct column {
    std::string name;
    dtype type;
    std::vector<std::uint64_t> shape;
    std::size_t offset;
  };

  [[nodiscard]] std::vector<column> columns() const {
    std::vector<column> all;
    std::size_t offset = 0;
    const auto& names = source.columns().features;
    for (const record_field& field : source.schema().fields) {
      const bool is_table = field.shape.size() == 1 && field.shape[0] == names.size() && !names.empty();
      for (std::size_t k = 0; is_table && k < names.size(); ++k)
        all.push_back({names[k], field.type, {}, offset + k * size_of(field.type)});
      if (!is_table) all.push_back({field.name, field.type, field.shape, offset});
      offset += field.bytes();
    }
    return all;
  }
  [[nodiscard]] std::string label_name(std::size_t number) const {
    const std::string& name = source.columns().label;
    return number == 0 && !name.empty() ? name : source.schema().labels[number];
  }
  static ArrowSchema schema_of(const std::string& name, dtype type, std::span<const std::uint64_t> shape) {
    schema_node node{.format = {}, .name = name};
    constexpr std::string_view formats = "?bcCsSiIlLe?fg?";
    node.format = formats[static_cast<std::size_t>(type)];
    if (node.format == "?")
      throw configuration_error("numbers of " + std::string(to_string(type)) + " cannot be exported (column '" + name +
                                "': Arrow has no such type); convert them");
    if (!shape.empty()) {
      node.format = "+w:" + std::to_string(shape[0]);
      node.add(schema_of("item", type, shape.subspan(1)));
    }
    return schema_node::exported(std::move(node));
  }
  [[nodiscard]] ArrowSchema schema() const {
    schema_node table{.format = "+s", .name = {}};
    for (const column& each : columns()) table.add(schema_of(each.name, each.type, each.shape));
    if (source.schema().form == record_form::bytes) table.add(schema_node::exported({.format = "Z", .name = "bytes"}));
    for (std::size_t k = 0; k < source.schema().labels.size(); ++k)
      table.add(schema_of(label_name(k), dtype::float32, {}));
    return schema_node::exported(std::move(table));
  }

  /// Returns an array of numbers: `row_bytes` bytes of each record, at `offset`.
  static ArrowArray numbers(std::span<const std::byte> records, std::size_t stride, std::size_t offset,
                            std::size_t count, dtype type, std::span<const std::uint64_t> shape,
                            std::uint64_t each = 1) {
    array_node node{.format = {}, .name = {}};
    node.root.length = static_cast<std::int64_t>(count * each);
    if (!shape.empty()) {
      node.buffers = {nullptr};
      node.add(numbers(records, stride, offset, count, type, shape.subspan(1), each * shape[0]));
      return array_node::exported(std::move(node));
    }
    const std::size_t size = size_of(type) * each;
    if (type == dtype::boolean) {
      node.memory.resize((count * each + 7) / 8);
      for (std::size_t k = 0; k < count * each; ++k)
        if (records[k / each * stride + offset + k % each] != std::byte{0})
          node.memory[k / 8] |= std::byte{1} << (k % 8);
    } else {
      node.memory.resize(count * size);
      for (std::size_t k = 0; k < count; ++k)
        std::memcpy(node.memory.data() + k * size, records.data() + k * stride + offset, size);
    }
    node.buffers = {nullptr, node.memory.data()};
    return array_node::exported(std::move(node));
  }
  ArrowArray batch() {
    const std::uint64_t count = std::min(rows, source.size() - next);
    if (count == 0) return {};
    record_run run;
    run.read(source, next, count, false, false);
    next += count;
    array_node table{.format = {}, .name = {}};
    table.root.length = static_cast<std::int64_t>(count);
    table.buffers = {nullptr};
    for (const column& each : columns())
      table.add(numbers(run.bytes, source.schema().record_bytes(), each.offset, count, each.type, each.shape));
    if (source.schema().form == record_form::bytes) {
      array_node node{.format = {}, .name = {}};
      node.root.length = table.root.length;
      node.ends.resize(count + 1);
      std::partial_sum(run.sizes.begin(), run.sizes.end(), node.ends.begin() + 1);
      node.memory = std::move(run.bytes);
      node.buffers = {nullptr, node.ends.data(), node.memory.data()};
      table.add(array_node::exported(std::move(node)));
    }
    const std::size_t labels = source.schema().labels.size();
    for (std::size_t k = 0; k < labels; ++k)
      table.add(numbers(std::as_bytes(std::span(run.labels)), labels * sizeof(float), k * sizeof(float), count,
                        dtype::float32, {}));
    return array_node::exported(std::move(table));
  }

  /// Calls f(), and keeps the text of its exception.
  static int run(ArrowArrayStream* stream, const auto& f) noexcept {
    auto& self = *static_cast<arrow_export*>(stream->private_data);
    try {
      f(self);
      return 0;
    } catch (const std::exception& failed) {
      self.problem = failed.what();
      return EIO;
    }
  }
};

}  // namespace detail

MUSTER_INLINE ArrowArrayStream export_arrow(const any_record_source& source, std::uint64_t rows) {
  if (source.schema().form == record_form::sparse)
    throw configuration_error("the records of " + std::string(source.name()) +
                              " are sparse (Arrow's arrays are dense); read them with the dense layout");
  if (rows == 0) throw configuration_error("batches cannot have 0 rows; use at least 1");
  auto owned = std::make_unique<detail::arrow_export>(detail::arrow_export{source, rows});
  ArrowSchema checked = owned->schema();  // throws for a type that Arrow lacks
  checked.release(&checked);
  ArrowArrayStream stream{};
  stream.private_data = owned.release();
  stream.get_schema = [](ArrowArrayStream* of, ArrowSchema* out) {
    return detail::arrow_export::run(of, [&](auto& self) { *out = self.schema(); });
  };
  stream.get_next = [](ArrowArrayStream* of, ArrowArray* out) {
    return detail::arrow_export::run(of, [&](auto& self) { *out = self.batch(); });
  };
  stream.get_last_error = [](ArrowArrayStream* of) {
    return static_cast<detail::arrow_export*>(of->private_data)->problem.c_str();
  };
  stream.release = [](ArrowArrayStream* of) {
    delete static_cast<detail::arrow_export*>(of->private_data);
    of->release = nullptr;
  };
  return stream;
}

}}}  // namespace muster::v0::data
