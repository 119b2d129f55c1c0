// What the four functions do when they are called; and the server that each of them is.
#pragma once

#include <string>
#include <vector>

#include <muster/comm/context.hpp>

#include "helloworld.grpc.pb.h"
#include "rpc.hpp"

namespace stacked {

/// What a function is told by flags and variables.
struct function_options {
  std::string name;  ///< driver, trainer, reducer or metatrainer
  std::string transfer = "INLINE", bucket = "vhive-stacking", zipkin;
  std::string listen = "127.0.0.1";  ///< the address
  int port = 80;
  int trainers = 0;  ///< of the driver; of a trainer: how many of its kind there are, 0 where it is not told
  // The driver's own.
  std::vector<std::string> trainer_addresses;
  std::string reducer_address, metatrainer_address, data;
  std::vector<std::string> models;  ///< that trainers fit in turn, by their names
  bool concurrent = false;
};

/// An object as a message has it.
struct given_object {
  const std::string &bytes, &key;
};
/// What a function made: models, and the matrix that belongs to them.
[[nodiscard]] stacking::Made get_both(const transfer& objects, const call& of, const given_object& models,
                                      const given_object& values);

/// Fits the model of a request, to all and in cross-validation.
[[nodiscard]] stacking::TrainReply train(const stacking::TrainRequest& request, const call& of, const transfer& objects,
                                         muster::context& ranks);
/// Joins models and predictions.
[[nodiscard]] stacking::ReduceReply reduce(const stacking::ReduceRequest& request, const call& of,
                                           const transfer& objects, const std::string& transfer_name);
/// Fits the meta model to the predictions.
[[nodiscard]] stacking::MetaTrainReply train_meta(const stacking::MetaTrainRequest& request, const call& of,
                                                  const transfer& objects, muster::context& ranks);

/// Invokes the others.
class driver {
 public:
  /// Reads the dataset. Throws muster::data_error, and configuration_error for options that do not fit together.
  driver(function_options options, const transfer& objects);
  /// One invocation: the bucket, and the score.
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

/// Serves until SIGTERM or SIGINT, then finishes what it does for five seconds.
void serve(const function_options& options, muster::context& ranks);

/// What the client is told.
struct client_options {
  std::string address = "localhost:50051", name = "world", latencies = "lat.csv", zipkin;
  double rate = 0;  ///< invocations a second, whatever the others do; 0: one after the other
  double seconds = 5, timeout = 30;
  int invocations = 1;  ///< one after the other
};
/// Invokes a driver, or anything else that says hello.
void invoke(const client_options& options);

}  // namespace stacked
