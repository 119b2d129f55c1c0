// The C++ fragments of the manual's pages, each within declarations of the names that it uses. This file is compiled,
// and not run. tests/repository/manual.py extracts the fragments (PAGE_NUMBER.inc) and verifies that all are included.
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/muster.hpp>

#include <muster/data/arrow.hpp>
#include <muster/serve/server.hpp>
#include <muster/testing/collective_kit.hpp>
#include <muster/testing/transport_kit.hpp>
#ifdef MUSTER_HAS_MPI
#include <muster/comm/transports/mpi/adopt.hpp>
#endif
#include <muster/comm/transports/nccl/communicator.hpp>
#include <muster/train/device/device_arena.hpp>
#include <muster/train/device/gradients.hpp>

// A user-defined model.
struct user_model {
  std::vector<muster::tensor_shape> shapes() const;
  struct statistics {
    void describe(muster::state_parts& parts);
  };
  statistics& batch_norm();
  void forward_backward(const muster::minibatch& part, muster::backward_pass& pass);
  void forward_backward(const muster::minibatch& batch, muster::device_stream& stream, muster::backward_pass& pass);
  double loss() const;
};
double validate(muster::group& ranks);

namespace collectives {
void uneven(muster::group& world, std::span<double> all_rows) {
#include "collectives_1.inc"
}
void reproducible(muster::group& world, std::span<float> gradient) {
#include "collectives_2.inc"
}
void messages(muster::group& world) {
#include "collectives_3.inc"
}
#include "collectives_4.inc"
void inside_mpi() {
#ifdef MUSTER_HAS_MPI
#include "collectives_5.inc"
#endif
}
}  // namespace collectives

namespace compression {
void sums(muster::context& context, muster::arena& arena) {
#include "compression_0.inc"
}
void spans(std::span<float> values, std::span<float> residual, std::span<float> sums, std::uint64_t step) {
#include "compression_1.inc"
}
struct trim_codec {
  unsigned bytes = 1;
  std::size_t encoded_bytes(std::size_t values) const;
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;
};
void codecs() {
#include "compression_2.inc"
}
}  // namespace compression

namespace checkpoints {
void loop(muster::session& session, muster::state& state, muster::tracker& tracker,
          const std::function<void(muster::step&)>& train) {
#include "checkpoints_0.inc"
}
}  // namespace checkpoints

namespace data {
void two() {
#include "data_1.inc"
}
void pipeline(const std::string& dir, std::uint64_t seed, int rank, int world, const muster::normalise& f) {
#include "data_2.inc"
}
void photographs(const muster::image_options& numbers) {
#include "data_3.inc"
}
void saved(const muster::image_options& numbers, const std::string& loaded_text, int model,
           void (*save)(int, const std::string&)) {
#include "data_4.inc"
}
void standardised() {
#include "data_5.inc"
}
void caches() {
#include "data_6.inc"
}
void builders(std::size_t rows, std::size_t features, float (*label)(std::size_t),
              std::vector<float> (*features_of)(std::size_t)) {
#include "data_7.inc"
}
}  // namespace data

namespace sources {
void names() {
#include "sources_0.inc"
}
void classes() {
#include "sources_1.inc"
}
void reads(const muster::any_record_source& source, std::span<const muster::sample_id> ids){
#include "sources_2.inc"
} muster::any_record_source sqlite_source(std::string_view file, std::string_view table);
void own() {
#include "sources_3.inc"
}
void tensors(std::span<const muster::data::tensor_view> tensors, std::span<const std::uint64_t> shape,
             muster::arena& arena) {
#include "sources_4.inc"
}
void exchanges(ArrowArrayStream& stream) {
#include "sources_5.inc"
}
void writes(const muster::any_record_source& source, std::span<const std::byte> bytes, std::span<const float> labels) {
#include "sources_6.inc"
}
}  // namespace sources

namespace gradients {
void initialise(muster::arena& arena) {
#include "gradients_1.inc"
}
}  // namespace gradients

namespace nccl {
void devices(int argc, char** argv, user_model& model, muster::loader& loader) {
#include "nccl_0.inc"
}
}  // namespace nccl

namespace optimizers {
void rates(muster::context& context, muster::arena& arena, muster::loader& loader, const muster::step& step) {
#include "optimizers_0.inc"
}
}  // namespace optimizers

namespace parameter_server {
void resize(muster::ps::job& job) {
#include "parameter_server_1.inc"
}
void saved(muster::ps::job& job, muster::state& state, const std::filesystem::path& folder) {
#include "parameter_server_2.inc"
}
}  // namespace parameter_server

namespace serving {
void serves() {
#include "serving_0.inc"
}
}  // namespace serving

namespace training {
void whole(muster::context& context, user_model& model, const muster::schedule& schedule,
           void (*validate)(muster::training_step&)) {
#include "training_0.inc"
}
}  // namespace training

namespace transports {
struct counting_transport : muster::transport_decorator {
  using muster::transport_decorator::transport_decorator;
};
void names() {
#include "transports_0.inc"
}
}  // namespace transports
