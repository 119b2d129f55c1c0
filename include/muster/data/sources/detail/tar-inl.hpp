#pragma once

#include <muster/data/sources/tar.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/data/cache/content_digest.hpp>
#include <muster/data/label.hpp>
#include <muster/data/parallel.hpp>
#include <muster/data/sources/array_file.hpp>
#include <muster/data/sources/decimal.hpp>
#include <muster/data/sources/detail/tar_archive-inl.hpp>
#include <muster/data/sources/mapped_file.hpp>
#include <muster/data/sources/text_format.hpp>  // quoted

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

/// Returns the key and the ending of a file, in lower case; the ending is empty for a file that belongs to no sample.
inline std::pair<std::string_view, std::string> split_name(std::string_view name) {
  const auto slash = name.rfind('/') + 1;  // 0 without a slash
  const auto dot = name.find('.', slash);
  if (dot == std::string_view::npos || dot == slash) return {};
  std::string ending(name.substr(dot + 1));
  for (char& c : ending) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return {name.substr(0, dot), std::move(ending)};
}

/// The files of a sample, with their endings.
using tar_sample = std::vector<std::pair<std::string, tar_member>>;

inline const tar_member* find_ending(const tar_sample& sample, std::string_view ending) {
  const auto found = std::ranges::find(sample, ending, &tar_sample::value_type::first);
  return found == sample.end() ? nullptr : &found->second;
}

}  // namespace detail

struct tar_samples::state : detail::source_facts {
  struct place {
    std::uint64_t header;  // of the first file
    std::uint64_t offset;  // of the data; 0: the sample has no data
    std::uint64_t size;
  };
  struct opened {
    std::string path;
    std::unique_ptr<const mapped_file> file;
    std::vector<place> samples = {};
    std::vector<float> labels = {};  // NaN: the sample is bad
    std::uint64_t left_out = 0;
    sample_id first = 0;
  };

  [[nodiscard]] std::string_view text(const opened& file, const detail::tar_member& member) const {
    return file.file->text().substr(member.offset, member.size);
  }
  [[nodiscard]] const opened& file_of(sample_id id) const noexcept {
    return *(std::ranges::upper_bound(files, id, {}, &opened::first) - 1);
  }

  /// Calls take(key, sample) for each sample from the header at byte `begin` on, until take returns false.
  void for_each_sample(const opened& file, std::uint64_t begin, std::uint64_t& left_out, const auto& take) const {
    detail::tar_reader reader(file.file->bytes(), file.path, begin);
    detail::tar_sample sample;
    std::string last_key;
    for (detail::tar_member member; reader.next(member);) {
      auto [key, ending] = detail::split_name(member.name);
      left_out += ending.empty() ? 1 : 0;
      if (ending.empty()) continue;
      if (!sample.empty() && key != last_key) {
        if (!take(last_key, sample)) return;
        sample.clear();
      }
      last_key = key;
      constexpr std::size_t most_files = 1000;
      if (sample.size() == most_files)
        throw data_error({file.path, 0, 0, member.header},
                         "has more than 1000 files in a sample; give them other names");
      if (detail::find_ending(sample, ending) != nullptr)
        throw data_error({file.path, 0, 0, member.header},
                         "has the file " + detail::quoted(member.name) + " twice in a sample; remove one");
      sample.emplace_back(std::move(ending), std::move(member));
    }
    if (!sample.empty()) take(last_key, sample);
  }

  /// Returns a label, or throws data_error.
  float read_label(const opened& file, const detail::tar_sample& sample, std::size_t which) const {
    const std::string& label = options.labels[which];
    const bool is_json = label.starts_with("json.");
    const detail::tar_member* const member = detail::find_ending(sample, is_json ? "json" : label);
    const detail::tar_member& shown = member == nullptr ? sample.front().second : *member;
    const auto fail = [&](const std::string& problem) {
      throw data_error({file.path, 0, 0, shown.header}, detail::quoted(shown.name) + ": " + problem);
    };
    if (member == nullptr) fail("its sample has no ." + (is_json ? "json" : label) + " file; " + detail::missing_label);
    std::string_view found = text(file, *member);
    nlohmann::json value;
    if (is_json) {
      int keys = 0;
      const auto count = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
        const bool is_key = depth == 1 && event == nlohmann::json::parse_event_t::key;
        keys += is_key && parsed.get_ref<const std::string&>() == std::string_view(label).substr(5) ? 1 : 0;
        return true;
      };
      const auto object = nlohmann::json::parse(found, count, false);
      if (!object.is_object()) fail("is not an object of JSON; correct it");
      if (keys > 1) fail("has the key " + detail::quoted(label.substr(5)) + " twice; remove one");
      value = object.value(label.substr(5), nlohmann::json());
      if (value.is_null()) fail("has no " + detail::quoted(label.substr(5)) + "; " + detail::missing_label);
      if (!value.is_string() && which == 0 && !options.classes.empty())
        value = value.dump();  // a class may be a number
      if (value.is_string()) found = value.get_ref<const std::string&>();
    }
    if (is_json && !value.is_string()) {
      if (!value.is_number() && !value.is_boolean()) fail("has a label that is no number; correct it");
      const float number = value.is_boolean()           ? (value.get<bool>() ? 1.0f : 0.0f)
                           : value.is_number_unsigned() ? detail::label_of(value.get<std::uint64_t>())
                           : value.is_number_integer()  ? detail::label_of(value.get<std::int64_t>())
                                                        : detail::label_of(value.get<double>());
      if (std::isnan(number)) fail(detail::no_label(detail::quoted(value.dump())));
      return number;
    }
    const auto first = std::min(found.find_first_not_of(" \t\r\n"), found.size());
    found = found.substr(first, found.find_last_not_of(" \t\r\n") + 1 - first);
    if (which == 0 && !options.classes.empty()) {
      const auto position = std::ranges::find(options.classes, found);
      if (position == options.classes.end())
        fail("label " + detail::quoted(found) + " is not a class; add it to classes");
      return static_cast<float>(position - options.classes.begin());
    }
    float number = 0;
    const auto [end, code] = detail::parse_float(found.data(), found.data() + found.size(), number);
    if (found.empty() || code != std::errc() || end != found.data() + found.size() ||
        !detail::is_exact_label(found, number))
      fail(found.empty() ? detail::missing_label : detail::no_label(detail::quoted(found)));
    return number + 0.0f;
  }

  /// Fills `file` with its samples and their labels.
  void index(opened& file) const {
    std::unordered_set<std::string> keys;
    for_each_sample(file, 0, file.left_out, [&](const std::string& key, const detail::tar_sample& sample) {
      const std::uint64_t header = sample.front().second.header;
      if (!keys.insert(key).second)
        throw data_error({file.path, 0, 0, header},
                         "has the key " + detail::quoted(key) +
                             " twice (the files of a sample are neighbours); remove one sample, or sort the files");
      const detail::tar_member* const data = detail::find_ending(sample, options.data);
      file.samples.push_back({header, data == nullptr ? 0 : data->offset, data == nullptr ? 0 : data->size});
      for (std::size_t which = 0; which < options.labels.size(); ++which) {
        float label = std::numeric_limits<float>::quiet_NaN();
        try {
          label = read_label(file, sample, which);
        } catch (const data_error&) {  // reported when the record is read
        }
        file.labels.push_back(label);
      }
      return true;
    });
    if (file.samples.empty())
      throw data_error({file.path}, "has no samples (files such as a.jpg and a.cls); check how it was made");
  }

  /// Chooses the ending of the data and the schema by the first sample.
  void use_first_sample(const opened& file) {
    std::uint64_t ignored = 0;
    for_each_sample(file, 0, ignored, [&](const std::string&, const detail::tar_sample& sample) {
      const auto fail = [&](const std::string& problem) {
        throw data_error({file.path, 0, 0, sample.front().second.header}, problem);
      };
      if (options.data.empty()) {
        std::vector<std::string> others;
        for (const auto& [ending, member] : sample)
          if (std::ranges::find(options.labels, ending) == options.labels.end() && ending != "cls" && ending != "txt" &&
              ending != "json" && ending != "id")
            others.push_back(ending);
        if (others.size() != 1)
          fail("the first sample has " + std::to_string(others.size()) + " files that may be the data (" +
               muster::detail::joined(others, ", ") + "); add ?data=ENDING");
        options.data = others[0];
      }
      schema.labels = options.labels.size() == 1 ? std::vector<std::string>{"label"} : options.labels;
      schema.classes = options.classes;
      if (options.type == dtype::none && options.data.ends_with("npy")) {
        const auto* const member = detail::find_ending(sample, options.data);
        if (member == nullptr) fail("the first sample has no ." + options.data + " file, which gives the shape");
        const auto header = detail::read_npy_header(bytes_of(file, {0, member->offset, member->size}), file.path);
        is_npy = true;
        options.type = header.type;
        options.shape = header.shape;
      }
      if (options.type == dtype::none) return false;
      schema.form = record_form::fixed;
      schema.fields = {{options.data, options.type, options.shape}};
      return false;
    });
  }

  [[nodiscard]] std::span<const std::byte> bytes_of(const opened& file, const place& sample) const {
    return file.file->bytes().subspan(sample.offset, sample.size);
  }

  /// Returns the numbers of an array whose type and shape are those of the schema, or throws data_error.
  [[nodiscard]] std::span<const std::byte> npy_numbers(const opened& file, const place& sample) const {
    const auto bytes = bytes_of(file, sample);
    const auto header = detail::read_npy_header(bytes, file.path);
    if (header.type != options.type || header.shape != options.shape)
      throw data_error({file.path, 0, 0, sample.offset},
                       "an array has another type or shape than the array of the first sample; correct it");
    return bytes.subspan(header.bytes);
  }

  /// Returns the record, or throws data_error.
  [[nodiscard]] std::span<const std::byte> record(sample_id id) const {
    const opened& file = file_of(id);
    const place& sample = file.samples[id - file.first];
    for (std::size_t which = 0; which < options.labels.size(); ++which) {
      if (!std::isnan(file.labels[(id - file.first) * options.labels.size() + which])) continue;
      std::uint64_t ignored = 0;
      for_each_sample(file, sample.header, ignored, [&](const std::string&, const detail::tar_sample& found) {
        return (void)read_label(file, found, which), false;
      });
    }
    const auto fail = [&](const std::string& problem) { throw data_error({file.path, 0, 0, sample.header}, problem); };
    if (sample.offset == 0) fail("a sample has no ." + options.data + " file; add it, or leave the sample out");
    const auto bytes = is_npy ? npy_numbers(file, sample) : bytes_of(file, sample);
    if (schema.form == record_form::fixed && bytes.size() != record_bytes)
      fail("the ." + options.data + " file of a sample has " + std::to_string(bytes.size()) +
           " bytes (its type and shape "
           "need " +
           std::to_string(record_bytes) + "); correct it");
    return bytes;
  }

  tar_options options;
  bool is_npy = false;
  std::uint64_t record_bytes = 0;
  std::vector<opened> files;
};

MUSTER_INLINE tar_samples::tar_samples(const std::vector<std::string>& paths, const tar_options& options) {
  if (paths.empty()) throw configuration_error("there are no tar archives to open; name at least one");
  auto new_state = std::make_shared<state>();
  new_state->name = "tar:";
  new_state->schema.form = record_form::bytes;
  new_state->options = options;
  new_state->files.resize(paths.size());
  const auto open = [&](std::size_t i) {
    new_state->files[i].path = paths[i];
    new_state->files[i].file = std::make_unique<const mapped_file>(paths[i], compressed_files::decoded, options.http);
  };
  open(0);
  new_state->use_first_sample(new_state->files[0]);
  new_state->record_bytes = new_state->schema.record_bytes();
  if (new_state->schema.form == record_form::fixed &&
      detail::checked_product(size_of(new_state->options.type), new_state->options.shape).value_or(0) == 0)
    throw configuration_error("the numbers of '" + paths[0] + "' have no bytes, or too many; correct the shape");
  detail::parallel_for(paths.size(), options.threads, [&](std::size_t i) {
    if (i != 0) open(i);
    new_state->index(new_state->files[i]);
  });
  muster::digest all;
  std::uint64_t left_out = 0;
  for (state::opened& file : new_state->files) {
    new_state->name += (new_state->size != 0 ? "," : "") + muster::detail::without_secrets(file.path);
    file.first = new_state->size;
    new_state->size += file.samples.size();
    left_out += file.left_out;
    detail::add_sampled_content(all, file.file->bytes(), options.threads);
  }
  if (left_out != 0)
    new_state->notes.push_back(std::to_string(left_out) + " files without an ending, or hidden files, are left out");
  for (const std::string& label : options.labels) all.add(label);
  new_state->digest = all.add(new_state->size).add(new_state->options.data).add(to_string(new_state->schema)).value();
  state_ = std::move(new_state);
  facts_ = state_.get();
}

MUSTER_INLINE std::optional<std::uint64_t> tar_samples::host_state() const {
  return detail::states_of(state_->files, [](const auto& each) { return each.file->host_state(); });
}
MUSTER_INLINE std::optional<std::uint64_t> tar_samples::host_state_now() const {
  return detail::states_of(state_->files, [](const auto& each) { return each.file->host_state_now(); });
}

MUSTER_INLINE void tar_samples::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto& file = state_->file_of(ids[k]);
    out[k] = state_->record_bytes != 0 ? state_->record_bytes : file.samples[ids[k] - file.first].size;
  }
}

MUSTER_INLINE void tar_samples::read(std::span<const sample_id> ids, const record_rows& rows,
                                     std::vector<bad_record>* bad) const {
  const std::size_t width = schema().labels.size();
  std::byte* output = rows.bytes.data();
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto& file = state_->file_of(ids[k]);
    const auto labels = rows.labels.empty() ? rows.labels : rows.labels.subspan(k * width, width);
    std::copy_n(file.labels.data() + (ids[k] - file.first) * width, labels.size(), labels.begin());
    std::uint64_t size = 0;
    if (!rows.bytes.empty()) sizes({&ids[k], 1}, {&size, 1});
    try {
      const auto record = state_->record(ids[k]);
      if (size != 0) std::memcpy(output, record.data(), size);
    } catch (const data_error& error) {
      if (bad == nullptr) throw;
      bad->push_back({ids[k], error.where(), error.problem()});
      std::ranges::fill(labels, 0.0f);
      std::fill_n(output, size, std::byte{0});
    }
    output += size;
  }
}

MUSTER_INLINE std::span<const std::byte> tar_samples::view(sample_id id) const { return state_->record(id); }

MUSTER_INLINE data_location tar_samples::location_of(sample_id id) const {
  const auto& file = state_->file_of(id);
  return {file.path, 0, 0, file.samples[id - file.first].header};
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
