// Tables in the Arrow C data interface (https://arrow.apache.org/docs/format/CDataInterface.html) and C stream
// interface, as sources and from sources. pyarrow, Polars, DuckDB and others exchange tables by these three structs. No
// library is needed.
#pragma once

#include <cstdint>
#include <string>

#include <muster/data/column_options.hpp>
#include <muster/data/record_source.hpp>

/// \cond
// As the specification defines them, with its guards: a program may have them from several libraries.
extern "C" {

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};
#endif

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

struct ArrowArrayStream {
  int (*get_schema)(struct ArrowArrayStream*, struct ArrowSchema* out);
  int (*get_next)(struct ArrowArrayStream*, struct ArrowArray* out);
  const char* (*get_last_error)(struct ArrowArrayStream*);
  void (*release)(struct ArrowArrayStream*);
  void* private_data;
};
#endif

}  // extern "C"
/// \endcond

namespace muster { inline namespace v0 { namespace data {

/// Takes the batches of a stream, whose items are structs, as the rows of a table. The columns become records by the
/// rules of open_parquet(). The source owns the batches and does not copy their values: reading a record reads the
/// arrays. If the record is a single number of type float32, or a list of numbers with a fixed size, and none is null,
/// the source is mapped, and a view of a record is the memory of the array. `name` is for messages.
///
/// The digest covers all records, so that opening reads them once, on `threads` threads (0: as many as available). The
/// stream is released in any case. Throws the errors of open_parquet(), and data_error with the text of the stream's
/// own error.
[[nodiscard]] any_record_source open_arrow(ArrowArrayStream& arrow_stream, const column_options& options = {},
                                           const std::string& name = "arrow", int threads = 0);

/// Returns a stream of the source's records, in batches of at most `rows` rows. Fields are arrays of lists with a fixed
/// size. The columns of a table are columns with their names, and the labels are columns of float32. A record of
/// bytes is one value of the column "bytes" (large_binary), beside the columns of the labels. The caller calls
/// `release` of the stream and of all results, in any thread. A bad record is an error of the stream. Throws
/// configuration_error for sparse records.
[[nodiscard]] ArrowArrayStream export_arrow(const any_record_source& source, std::uint64_t rows = 4096);

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
