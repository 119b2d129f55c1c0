#include "functions.hpp"

#include <charconv>

#include "learners.hpp"

namespace stacked {
namespace {

template <class Message>
Message parsed(const std::string& bytes, const std::string& key) {
  Message message;
  if (!message.ParseFromString(bytes))
    throw muster::data_error({"object '" + key + "'"}, "it is not a model; run all functions with one version");
  return message;
}

/// An object, and the destinations for its bytes and its key.
struct output_object {
  std::string name, object;
  std::string *bytes, *key;
};

/// Stores both objects as one, which takes a single request.
void put_both(const transfer& objects, const call& of, const std::string& invocation, output_object models,
              output_object values) {
  if (objects.is_inline()) {
    for (auto* object_of_both : {&models, &values})
      objects.put(of, invocation, object_of_both->name, std::move(object_of_both->object), object_of_both->bytes,
                  object_of_both->key);
    return;
  }
  stacking::Made both;
  both.set_models(std::move(models.object));
  both.set_matrix(std::move(values.object));
  objects.put(of, invocation, models.name, both.SerializeAsString(), models.bytes, models.key);
  *values.key = *models.key;
}

std::string number_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

}  // namespace

stacking::Made get_both(const transfer& objects, const call& of, const given_object& models,
                        const given_object& values) {
  if (!objects.is_inline()) return parsed<stacking::Made>(objects.get(of, {}, models.key), models.key);
  stacking::Made both;
  both.set_models(objects.get(of, models.bytes, models.key));
  both.set_matrix(objects.get(of, values.bytes, values.key));
  return both;
}

stacking::TrainReply train(const stacking::TrainRequest& request, const call& of, const transfer& objects,
                           muster::context& ranks) {
  const dataset data = to_dataset(objects.get(of, request.dataset(), request.dataset_key()), request.dataset_key());
  stacking::Model model;
  column predictions;
  {
    span training(of.in, "Training a model");
    const events_as_spans timeline(training);
    const learner fit = make_learner(request.model_config(), data, ranks);
    rows all(static_cast<std::size_t>(data.labels.size()));
    for (std::size_t k = 0; k < all.size(); ++k) all[k] = static_cast<Eigen::Index>(k);
    predictions = cross_predict(fit, data.features, parts_in_order(data.labels.size()));
    model = fit(all);
    training.tag("model", model.kind());
    training.tag("score", number_text(roc_auc(data.labels, predictions)));
  }
  const std::string invocation = invocation_of(request.dataset_key());
  stacking::TrainReply reply;
  put_both(
      objects, of, invocation,
      {"model_" + request.trainer_id(), model.SerializeAsString(), reply.mutable_model(), reply.mutable_model_key()},
      {"pred_model_" + request.trainer_id(), to_npy(predictions), reply.mutable_pred(), reply.mutable_pred_key()});
  return reply;
}

stacking::ReduceReply reduce(const stacking::ReduceRequest& request, const call& of, const transfer& objects,
                             const std::string& transfer_name) {
  if (request.model_pred_tuples_size() == 0)
    throw muster::configuration_error(
        "the reducer receives no models (TrainersNum is 0); set TrainersNum to 1 or more");
  stacking::FullModel models;
  matrix features;
  const std::string* known = nullptr;  // Classes of the last model that has some.
  int next = 0;
  for (const auto& pair : request.model_pred_tuples()) {
    span getting(of.in, "Reducer gets model " + std::to_string(next) + " from " + transfer_name);
    const call within{of.until, getting};
    const auto both = get_both(objects, within, {pair.model(), pair.model_key()}, {pair.pred(), pair.pred_key()});
    auto& model = *models.add_models();
    model = parsed<stacking::Model>(both.models(), pair.model_key());
    if (known != nullptr && model.rows() == *known) {
      model.clear_rows();
    } else if (!model.rows().empty()) {
      known = &model.rows();
    }
    const matrix predictions = from_npy(both.matrix(), pair.pred_key());
    if (next == 0) features.resize(predictions.rows(), request.model_pred_tuples_size());
    if (predictions.rows() != features.rows() || predictions.cols() != 1) {
      throw muster::data_error({"object '" + pair.pred_key() + "'"},
                               "its rows differ from the earlier predictions; train all models with one dataset");
    }
    features.col(next++) = predictions;
  }
  const std::string invocation = invocation_of(request.model_pred_tuples(0).model_key());
  stacking::ReduceReply reply;
  put_both(objects, of, invocation,
           {"models", models.SerializeAsString(), reply.mutable_models(), reply.mutable_models_key()},
           {"meta_features", to_npy(features), reply.mutable_meta_features(), reply.mutable_meta_features_key()});
  return reply;
}

stacking::MetaTrainReply train_meta(const stacking::MetaTrainRequest& request, const call& of, const transfer& objects,
                                    muster::context& ranks) {
  dataset data;
  matrix features;
  stacking::FullModel full;
  {
    span getting(of.in, "Get the inputs");
    const call within{of.until, getting};
    std::string samples;
    stacking::Made both;
    objects.at_once([&] { samples = objects.get(within, request.dataset(), request.dataset_key()); },
                    [&] {
                      both = get_both(objects, within, {request.models(), request.models_key()},
                                      {request.meta_features(), request.meta_features_key()});
                    });
    data = to_dataset(samples, request.dataset_key());
    features = from_npy(both.matrix(), request.meta_features_key());
    full = parsed<stacking::FullModel>(both.models(), request.models_key());
    if (features.rows() != data.labels.size())
      throw muster::data_error({"object '" + request.meta_features_key() + "'"},
                               "its rows differ from the dataset; train all models with this dataset");
  }
  column classes;
  stacking::MetaTrainReply reply;
  {
    span training(of.in, "Train the meta model");
    data.features = features;
    const learner fit = make_learner(request.model_config(), data, ranks);
    const column probabilities = cross_predict(fit, features, parts_by_label(data.labels));
    classes = (probabilities.array() > 0.5).cast<double>();
    reply.set_score(number_text(roc_auc(classes, data.labels)));  // The predictions determine the score.
    rows all(static_cast<std::size_t>(data.labels.size()));
    for (std::size_t k = 0; k < all.size(); ++k) all[k] = static_cast<Eigen::Index>(k);
    *full.mutable_meta_model() = fit(all);
    training.tag("score", reply.score());
  }
  span putting(of.in, "Put the full model and predictions");
  const call within{of.until, putting};
  const std::string invocation = invocation_of(request.dataset_key());
  put_both(
      objects, within, invocation,
      {"model_full", full.SerializeAsString(), reply.mutable_model_full(), reply.mutable_model_full_key()},
      {"meta_predictions", to_npy(classes), reply.mutable_meta_predictions(), reply.mutable_meta_predictions_key()});
  return reply;
}

}  // namespace stacked
