// The steps of pipelines.
#include <optional>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <muster/core/error.hpp>
#include <muster/data/image.hpp>
#include <muster/data/image_steps.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/standardise.hpp>

#include "data_objects.hpp"
#include "module.hpp"
#include "python_transform.hpp"

namespace muster::python {
namespace {

image_layout layout_from(const std::string& name) {
  if (name == "hwc") return image_layout::hwc;
  if (name == "chw") return image_layout::chw;
  throw configuration_error("there is no layout '" + name + "' (hwc and chw are); choose hwc or chw");
}

std::array<float, 3> three(const std::vector<float>& values, const char* name) {
  if (values.size() == 1) return {values[0], values[0], values[0]};
  if (values.size() == 3) return {values[0], values[1], values[2]};
  throw configuration_error(std::string(name) + " has " + std::to_string(values.size()) +
                            " values (an image has one or three channels); pass 1 or 3");
}

image_options conversion(const std::vector<float>& mean, const std::vector<float>& deviation,
                         const std::string& layout) {
  return {three(mean, "mean"), three(deviation, "deviation"), layout_from(layout)};
}

}  // namespace

void define_steps(nb::module_& module) {
  using nb::arg;
  nb::class_<shuffle>(module, "shuffle", "A step of a pipeline: orders the samples anew in every epoch, by the seed.")
      .def(
          "__init__",
          [](shuffle* self, std::uint64_t seed, std::uint64_t block, std::uint32_t window) {
            new (self) shuffle(seed, {.block = block, .window = window});
          },
          arg("seed"), arg("block") = 0, arg("window") = 0);
  nb::class_<batch>(module, "batch",
                    "A step of a pipeline: groups `size` samples, over all ranks, into one batch. With `per_rank` the "
                    "size is a rank's part; with `drop_last` a last batch that is not full is left out.")
      .def(
          "__init__",
          [](batch* self, std::uint64_t size, bool drop_last, bool per_rank) {
            new (self) batch(size, {.drop_last = drop_last, .per_rank = per_rank});
          },
          arg("size"), arg("drop_last") = false, arg("per_rank") = false);
  nb::class_<pipeline_step>(module, "step", "A step of a pipeline after `batch`.")
      .def("__repr__", [](pipeline_step& self) { return "muster." + self.name + "(...)"; });
  module.def(
      "prefetch",
      [](std::size_t batches, int threads, std::size_t bytes) {
        return pipeline_step{"prefetch", [=](loader before) {
                               return std::move(before) | muster::prefetch(prefetch_options{batches, threads, bytes});
                             }};
      },
      arg("batches"), arg("threads") = 1, arg("bytes") = std::size_t{256} << 20,
      "A step: `threads` threads prepare up to `batches` batches ahead, in at most `bytes` of memory.");
  module.def(
      "cache",
      [](std::size_t memory, const std::string& folder) {
        return pipeline_step{"cache", [=](loader before) {
                               cache_options options{.folder = folder};
                               options.memory = memory != 0 || !folder.empty() ? memory : std::size_t(-1);
                               return std::move(before) | muster::cache(options);
                             }};
      },
      arg("memory") = 0, arg("folder") = "",
      "A step: keeps the results of the steps before it, in `memory` bytes and in a folder; without either, all "
      "in memory.");
  module.def(
      "map",
      [](nb::object function, std::optional<std::vector<std::uint64_t>> shape, std::optional<std::string> type,
         std::uint64_t version) {
        const python_transform call(std::move(function), std::move(shape), std::move(type), version);
        return pipeline_step{"map", [call](loader before) { return std::move(before) | muster::map(call); }};
      },
      arg("function"), arg("shape") = nb::none(), arg("dtype") = nb::none(), arg("version") = 0,
      "A step: replaces every record by `function(record)`, with an array of numpy, or bytes. `shape` and "
      "`dtype` describe the results, by default the input's. `version` changes when the function does, for "
      "caches on disk.");
  module.def(
      "augment_by",
      [](nb::object function, std::optional<std::vector<std::uint64_t>> shape, std::optional<std::string> type) {
        const python_transform call(std::move(function), std::move(shape), std::move(type), 0);
        return pipeline_step{"augment_by", [call](loader before) { return std::move(before) | muster::augment(call); }};
      },
      arg("function"), arg("shape") = nb::none(), arg("dtype") = nb::none(),
      "A step: replaces every record by `function(record, seed)`, where `seed` is a whole number that depends on "
      "the loader's seed, the epoch and the sample alone.");
  const std::vector<float> zero{0.0f}, one{1.0f};
  module.def(
      "normalise",
      [](const std::vector<float>& mean, const std::vector<float>& deviation, const std::string& layout) {
        const muster::normalise call(conversion(mean, deviation, layout));
        return pipeline_step{"normalise", [call](loader before) { return std::move(before) | muster::map(call); }};
      },
      arg("mean") = zero, arg("deviation") = one, arg("layout") = "chw",
      "A step: images of bytes become float32, (byte / 255 - mean) / deviation.");
  module.def(
      "augment",
      [](unsigned pad, bool flip, unsigned cutout, const std::vector<float>& mean, const std::vector<float>& deviation,
         const std::string& layout) {
        const image_augmentation call({pad, flip, cutout}, conversion(mean, deviation, layout));
        return pipeline_step{"augment", [call](loader before) { return std::move(before) | muster::augment(call); }};
      },
      arg("pad") = 0, arg("flip") = false, arg("cutout") = 0, arg("mean") = zero, arg("deviation") = one,
      arg("layout") = "chw",
      "A step: a random crop of images padded by `pad` pixels, a flip, normalisation and a square cut out.");
  module.def(
      "prepare",
      [](const std::string& text) {
        return pipeline_step{"prepare", [=](loader before) { return std::move(before) | muster::prepare(text); }};
      },
      arg("steps"), "A step from text, such as \"resize:28x28|greyscale\" or \"jpeg:224x224,resize=256\".");
  module.def(
      "standardise",
      [](const std::string& layout) {
        return pipeline_step{"standardise", [=](loader before) {
                               return std::move(before) | standardise_by_source{.output = layout_from(layout)};
                             }};
      },
      arg("layout") = "chw", "A step: every column, or channel, gets mean 0 and deviation 1 over the source.");
  module.def(
      "skip_bad_records",
      [](std::uint64_t limit, const std::string& file) {
        return pipeline_step{"skip_bad_records", [=](loader before) {
                               bad_record_options options{.policy = bad_record_policy::skip, .limit = limit};
                               if (!file.empty()) options.policy = bad_record_policy::quarantine;
                               options.file = file;
                               return std::move(before) | on_bad_records(options);
                             }};
      },
      arg("limit") = std::uint64_t(-1), arg("file") = "",
      "A step: leaves up to `limit` bad records out, and writes each into `file` if one is given.");
}

}  // namespace muster::python
