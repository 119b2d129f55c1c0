// The driver: invokes trainers, the reducer and the meta-trainer.
#include <atomic>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>

#include "functions.hpp"
#include "matrix.hpp"

namespace stacked {
namespace {

using nlohmann::json;

/// Returns the configuration of a model with the parameters of vSwarm.
std::string config_of(const std::string& model) {
  json params = json::object();
  if (model == "LinearSVR") params = {{"C", 1.0}, {"tol", 1e-6}, {"random_state", 42}};
  if (model == "Lasso") params = {{"alpha", 0.1}};
  if (model == "RandomForestRegressor")
    params = {
        {"n_estimators", 2}, {"max_depth", 2}, {"min_samples_split", 2}, {"min_samples_leaf", 2}, {"random_state", 42}};
  if (model == "KNeighborsRegressor") params = {{"n_neighbors", 20}};
  return json{{"model", model}, {"params", params}}.dump();
}

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    throw muster::data_error({path}, "it cannot be read; write it with examples/stacking/make_data.py");
  return std::move(text).str();
}

std::string new_invocation() {
  static std::atomic<std::uint64_t> next = (std::uint64_t{std::random_device()()} << 32) + 1;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(muster::mix(next++)));
  return text;
}

auto channel_to(const std::string& address) {
  // Each client has its own channel, even if two have one address: a balancer spreads connections.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

driver::driver(function_options options, const transfer& objects)
    : options_(std::move(options)),
      objects_(objects),
      reducer_(stacking::Reducer::NewStub(channel_to(options_.reducer_address))),
      metatrainer_(stacking::Metatrainer::NewStub(channel_to(options_.metatrainer_address))) {
  auto& addresses = options_.trainer_addresses;
  if (addresses.size() > 1 && static_cast<int>(addresses.size()) != options_.trainers) {
    throw muster::configuration_error("tAddr has " + std::to_string(addresses.size()) +
                                      " trainer instances (TrainersNum is " + std::to_string(options_.trainers) +
                                      "); make them the same");
  }
  addresses.resize(static_cast<std::size_t>(options_.trainers), addresses.front());
  for (const auto& address : addresses) trainers_.push_back(stacking::Trainer::NewStub(channel_to(address)));
  dataset_ = file_text(options_.data);
  if (const auto digest = file_text(options_.data + ".sha256"); !digest.starts_with(digest_of(dataset_)))
    throw muster::data_error({options_.data}, "its digest differs from " + options_.data + ".sha256; write both again");
  static_cast<void>(to_dataset(dataset_, options_.data));
}

driver::tuple driver::train_one(const call& of, const std::string& dataset, const std::string& key, int trainer) {
  stacking::TrainRequest request;
  request.set_dataset(dataset);
  request.set_dataset_key(key);
  request.set_model_config(config_of(options_.models[static_cast<std::size_t>(trainer) % options_.models.size()]));
  request.set_trainer_id(std::to_string(trainer));
  const auto ask_at = [&](std::size_t instance, bool waits) {
    const auto reply = ask(of, *trainers_[instance], options_.trainer_addresses[instance], objects_.is_inline(),
                           &stacking::Trainer::Stub::Train, &stacking::Trainer::Stub::TrainStreamed, request,
                           [&](grpc::ClientContext& context) {
                             context.AddMetadata("trainers-num", std::to_string(options_.trainers));
                             context.set_wait_for_ready(waits);
                           });
    tuple result;
    result.set_model(reply.model());
    result.set_model_key(reply.model_key());
    result.set_pred(reply.pred());
    result.set_pred_key(reply.pred_key());
    return result;
  };
  const auto first = static_cast<std::size_t>(trainer), other = (first + 1) % trainers_.size();
  try {
    return ask_at(first, false);
  } catch (const muster::peer_failure& failure) {
    muster::log(muster::log_level::warning, "trainer " + std::to_string(trainer) + " is retried: " + failure.what());
  }
  // Asks another instance. Several instances behind one address are interchangeable.
  return ask_at(other, options_.trainer_addresses[first] == options_.trainer_addresses[other]);
}

std::vector<driver::tuple> driver::train_all(const call& of, const std::string& dataset, const std::string& key) {
  span whole(of.in, "Invoke all trainers");
  const call within{of.until, whole};
  std::vector<tuple> results(static_cast<std::size_t>(options_.trainers));
  std::vector<std::exception_ptr> failures(results.size());
  const auto train = [&](std::size_t trainer) {
    try {
      results[trainer] = train_one(within, dataset, key, static_cast<int>(trainer));
    } catch (...) {
      failures[trainer] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t trainer = 0; trainer < results.size(); ++trainer) {
      if (options_.concurrent) {
        threads.emplace_back(train, trainer);
      } else if (train(trainer); failures[trainer]) {
        break;
      }
    }
  }
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return results;
}

std::string driver::invoke(const call& of) {
  std::string dataset, key;
  objects_.put(of, new_invocation(), "dataset", dataset_, &dataset, &key);
  stacking::ReduceRequest trained;
  for (auto& trained_pair : train_all(of, dataset, key)) *trained.add_model_pred_tuples() = std::move(trained_pair);
  auto reduced = ask(of, *reducer_, options_.reducer_address, objects_.is_inline(), &stacking::Reducer::Stub::Reduce,
                     &stacking::Reducer::Stub::ReduceStreamed, trained);
  stacking::MetaTrainRequest request;
  request.set_dataset(dataset);
  request.set_dataset_key(key);
  request.set_allocated_models(reduced.release_models());
  request.set_models_key(reduced.models_key());
  request.set_allocated_meta_features(reduced.release_meta_features());
  request.set_meta_features_key(reduced.meta_features_key());
  request.set_model_config(config_of("LogisticRegression"));
  const auto reply =
      ask(of, *metatrainer_, options_.metatrainer_address, objects_.is_inline(),
          &stacking::Metatrainer::Stub::Metatrain, &stacking::Metatrainer::Stub::MetatrainStreamed, request);
  const auto both = get_both(objects_, of, {reply.model_full(), reply.model_full_key()},
                             {reply.meta_predictions(), reply.meta_predictions_key()});
  stacking::FullModel full;
  if (!full.ParseFromString(both.models()) || full.models_size() != options_.trainers ||
      from_npy(both.matrix(), reply.meta_predictions_key()).size() == 0) {
    throw muster::data_error({"object '" + reply.model_full_key() + "'"},
                             "it is not an ensemble of all trainers; run all functions with one version");
  }
  return options_.bucket + " score " + reply.score();
}

}  // namespace stacked
