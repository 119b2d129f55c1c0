// The four functions of the ensemble, and the server that runs each function.
#pragma once

#include <string>
#include <vector>

#include <muster/comm/context.hpp>

#include "helloworld.grpc.pb.h"
#include "rpc.hpp"

namespace stacked {

/// The options of a function, from flags and variables.
struct function_options {
  std::string name;  ///< driver, trainer, reducer or metatrainer
  std::string transfer = "INLINE", bucket = "vhive-stacking", zipkin;
  std::string listen = "127.0.0.1";  ///< Listen address.
  int port = 80;
  /// For the driver: number of trainers. For a trainer: number of equal trainers, 0 if unknown.
  int trainers = 0;
  // Options of the driver only.
  std::vector<std::string> trainer_addresses;
  std::string reducer_address, metatrainer_address, data;
  std::vector<std::string> models;  ///< Names of the models that trainers fit in turn.
  bool concurrent = false;
};

/// An object in the form that a message carries.
struct given_object {
  const std::string &bytes, &key;
};
/// Returns the outputs of a function: models, and the matrix that belongs to them.
[[nodiscard]] stacking::Made get_both(const transfer& objects, const call& of, const given_object& models,
                                      const given_object& values);

/// Fits the model of a request, to all rows and in cross-validation.
[[nodiscard]] stacking::TrainReply train(const stacking::TrainRequest& request, const call& of, const transfer& objects,
                                         muster::context& ranks);
/// Joins models and predictions.
[[nodiscard]] stacking::ReduceReply reduce(const stacking::ReduceRequest& request, const call& of,
                                           const transfer& objects, const std::string& transfer_name);
/// Fits the meta model to the predictions.
[[nodiscard]] stacking::MetaTrainReply train_meta(const stacking::MetaTrainRequest& request, const call& of,
                                                  const transfer& objects, muster::context& ranks);

/// The driver, which invokes the other functions.
class driver {
 public:
  /// Reads the dataset. Throws muster::data_error, or configuration_error for contradictory options.
  driver(function_options options, const transfer& objects);
  /// Runs one invocation, and returns the bucket and the score.
  [[nodiscard]] std::string invoke(const call& of);

 private:
  using tuple = stacking::ModelPredTuple;
  [[nodiscard]] std::vector<tuple> train_all(const call& of, const std::string& dataset, const std::string& key);
  [[nodiscard]] tuple train_one(const call& of, const std::string& dataset, const std::string& key, int trainer);

  function_options options_;
  const transfer& objects_;
  std::string dataset_{};
  std::vector<std::unique_ptr<stacking::Trainer::Stub>> trainers_{};
  std::unique_ptr<stacking::Reducer::Stub> reducer_;
  std::unique_ptr<stacking::Metatrainer::Stub> metatrainer_;
};

/// Serves until SIGTERM or SIGINT, then allows five seconds for the calls in progress.
void serve(const function_options& options, muster::context& ranks);

/// The options of the client.
struct client_options {
  std::string address = "localhost:50051", name = "world", latencies = "lat.csv", zipkin;
  double rate = 0;  ///< Invocations per second, independent of replies; 0: one after the other.
  double seconds = 5, timeout = 30;
  int invocations = 1;  ///< Number of invocations, one after the other.
};
/// Invokes a driver, or any other service with the method SayHello.
void invoke(const client_options& options);

}  // namespace stacked
