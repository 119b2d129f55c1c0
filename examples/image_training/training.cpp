#include "training.hpp"

#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>

#include <muster/core/atomic_file.hpp>
#include <muster/core/hash.hpp>
#include <muster/train/timeline.hpp>
#include <muster/train/train_settings.hpp>
#include <muster/train/training.hpp>

#include "../job.hpp"
#include "data.hpp"
#include "device_model.hpp"
#include "evaluation.hpp"
#include "loss.hpp"
#include "processor.hpp"
#include "report.hpp"
#include "saved_model.hpp"

namespace images {
namespace {

class run {
 public:
  run(muster::context& context, muster::group& world, const image_data& data, const options& chosen)
      : context_(context),
        chosen_(chosen),
        in_shards_(muster::training::sync_of_job(context).virtual_shards > 0),
        data_(data),
        started_as_(examples::describe_ranks(context, world)),
        speaks_first_(world.rank() == 0 && context.launcher().rank == 0),
        description_{
            chosen.model, {data.height, data.width, data.channels}, data.classes, data.preparation, data.class_names},
        net_(make_model(description_, chosen.execution)),
        arena_(context, net_->shapes()),
        optimizer_(muster::make_optimizer(arena_, chosen.optimizer)),
        schedule_(muster::parse_schedule(chosen.schedule)),
        loader_(training_loader(data, chosen.seed, batches_of(chosen), chosen.augment, chosen.stages)),
        test_(test_loader(data, muster::batch(128, {.per_rank = true}), chosen.stages)),
        timeline_(context),
        tracker_(world, {.goal = chosen.goal,
                         .metrics = context.configuration().value(muster::setting::metrics),
                         .tensorboard = context.configuration().value(muster::setting::tensorboard)}) {
    net_->bind(arena_);
    net_->initialise(chosen.seed);
    if (!chosen.init.empty()) examples::read_tensors(chosen.init, description_.name, tensors_of(*net_));
    // A rank's own statistics are this rank's state. Shared statistics, and statistics of virtual shards, are equal on
    // every rank.
    const auto kind =
        chosen.share_statistics || in_shards_ ? muster::state_kind::replicated : muster::state_kind::rank_local;
    const auto statistics = [&] { return muster::restored_values{"batch_norm", net_->statistics(), kind}; };
    if (chosen.device == "cpu") {
      training_.emplace(context, arena_, optimizer_, loader_, schedule_, tracker_, statistics());
    } else {
      device_ = make_device_model(context, world, chosen, description_, *net_, arena_);
      auto options = muster::training::sync_of_job(context);
      options.codec = {};  // The device's gradients have their own codec.
      training_.emplace(context, options, device_->gradients(), device_->optimizer(), loader_, schedule_, tracker_,
                        statistics());
    }
  }

  void train() {
    if (speaks_first_)
      print_header(chosen_, *net_, loader_.name(), started_as_ + (device_ ? ", " + device_->description() : ""));
    training_->run(
        {.epochs = chosen_.epochs,
         .steps = chosen_.steps,
         .max_seconds = chosen_.max_train_seconds,
         .stop = stop_at_goal(),
         .checkpoint = chosen_.checkpoint,
         .resume = chosen_.resume,
         .each_epoch = [this](muster::training_step& step) { validate(step); },
         .at_end = [this](muster::training_step& step) { finish(step); },
         .each_group = [this](muster::group& ranks, bool joined) { meet(ranks, joined); },
         .print = [this](const auto& epoch) { print_epoch(tracker_, epoch.epoch, epoch["top5"], epoch["rate"]); }},
        [this](muster::training_step& step) { train_step(step); });
    if (!training_->is_root()) return;
    const auto& epochs = training_->epochs();
    const auto last = epochs.empty() ? muster::epoch_summary() : epochs.back();
    print_results(tracker_, chosen_, last["val_accuracy"], last["top5"]);
    write_report(tracker_, context_, chosen_, loader_.name(), last["top5"]);
  }

 private:
  [[nodiscard]] std::function<bool(const muster::epoch_summary&)> stop_at_goal() const {
    if (!chosen_.stop_at_goal) return {};
    return [this](const auto&) { return tracker_.time_to_goal().has_value(); };
  }

  void meet(muster::group& ranks, bool joined) {
    require_same_everywhere(ranks, data_);
    if (device_) device_->meet(ranks);
    if (chosen_.share_statistics)
      statistics_.emplace(ranks.duplicate());
    else if (!in_shards_)
      share_statistics(ranks, *net_, joined);
  }

  void train_step(muster::training_step& step) {
    const auto batch = step.next(loader_);
    nn::totals sums;
    const auto statistics = net_->statistics();
    const std::vector<float> before(statistics.begin(), statistics.end());
    std::vector<float> of_shards;
    step.backward(batch, [&](const muster::minibatch& part, auto& backward) {
      if (!device_) backward.clear();
      backward.divided_by(static_cast<double>(batch.global_size));
      // Each shard sees the same statistics, independent of other shards.
      if (in_shards_) std::ranges::copy(before, statistics.begin());
      const double scale = 1.0 / static_cast<double>(batch.global_size);
      const nn::pass now{.images = part.samples.size(),
                         .statistics = statistics_ ? &*statistics_ : nullptr,
                         .samples = part.samples,
                         .key = muster::mix(chosen_.seed) + step.number(),
                         .ready = [&](std::size_t tensor) { backward.ready(tensor); }};
      if (device_) return device_->train(part.values<float>(), part.labels, scale, now);
      std::span<const float> logits;
      {
        auto phase = tracker_.phase(muster::phase::forward);
        logits = net_->forward(part.values<float>(), now);
      }
      {
        auto phase = tracker_.phase(muster::phase::loss);
        slopes_.resize(logits.size());
        sums += nn::softmax_cross_entropy<float>(logits, part.labels, net_->classes(), scale, slopes_);
      }
      auto phase = tracker_.phase(muster::phase::backward);
      net_->backward(slopes_, now);
      if (in_shards_) of_shards.insert(of_shards.end(), statistics.begin(), statistics.end());
    });
    if (device_) sums = device_->finish();
    if (in_shards_ && !statistics.empty()) step.mean_over_shards(of_shards, statistics);
    const double rate = schedule_(step) * (chosen_.batch_per_rank != 0 ? examples::growth(context_, step) : 1.0);
    step.update(device_ ? device_->optimizer() : optimizer_, rate);
    step.report("rate", rate);
    step.report_sum("loss", sums.loss, static_cast<double>(sums.images));
    step.report_sum("train_accuracy", static_cast<double>(sums.top1), static_cast<double>(sums.images));
  }

  void validate(muster::training_step& step) {
    if (!in_shards_) average_statistics(step.group(), *net_);
    const auto on_device = [this](auto images, auto count) { return device_->predict(images, count); };
    const predictor model = device_ ? predictor(on_device) : predictor_of(*net_);
    if (device_ && chosen_.save_best) device_->download(arena_);
    const auto found = evaluate(step.group(), model, net_->classes(), test_);  // Sums over all ranks.
    if (step.group().rank() != 0) return;
    const auto images = static_cast<double>(found.images);
    keep_if_best(static_cast<double>(found.top1) / images);
    step.report_sum("val_loss", found.loss, images);
    step.report_sum("val_accuracy", static_cast<double>(found.top1), images);
    step.report_sum("top5", static_cast<double>(found.top5), images);
  }

  // Returns the number of the first epoch with the best validation accuracy among the epochs that have ended; 0 if none
  // has.
  [[nodiscard]] std::uint64_t best_epoch() const {
    std::uint64_t best = 0;
    double most = -1;
    for (const auto& epoch : training_->epochs()) {
      if (epoch["val_accuracy"] > most) {
        most = epoch["val_accuracy"];
        best = epoch.epoch;
      }
    }
    return best;
  }

  // Returns the file of the best model so far, beside the checkpoints, because the training may resume from them.
  [[nodiscard]] std::string best_file(std::uint64_t epoch) const {
    const auto begin = chosen_.checkpoint.empty() ? chosen_.save + "." : chosen_.checkpoint + "/";
    return begin + "best-" + std::to_string(epoch) + ".muster";
  }

  void keep_if_best(double accuracy) {
    if (!chosen_.save_best || chosen_.save.empty()) return;
    const auto& epochs = training_->epochs();
    const auto best = best_epoch();
    if (best != 0 && !(accuracy > epochs[best - epochs.front().epoch]["val_accuracy"])) return;
    std::error_code ignored;
    if (!chosen_.checkpoint.empty()) std::filesystem::create_directories(chosen_.checkpoint, ignored);
    save_model(best_file(epochs.empty() ? 1 : epochs.back().epoch + 1), description_, *net_);
    if (best != 0) std::filesystem::remove(best_file(best), ignored);
  }

  // Writes the model of the best epoch if it was kept, else of the last epoch.
  void save(const muster::group& ranks) {
    const auto best = chosen_.save_best ? best_epoch() : 0;
    if (best != 0 && std::filesystem::exists(best_file(best))) {
      const auto kept = load_model(best_file(best));
      save_model(chosen_.save, kept.description, *kept.net);
      std::error_code ignored;
      if (chosen_.checkpoint.empty()) std::filesystem::remove(best_file(best), ignored);
      tracker_.annotate("saved_epoch", std::to_string(best));
    } else {
      save_model(chosen_.save, description_, *net_);
      if (best != 0) {
        std::fprintf(
            stderr, "muster: warning: the last epoch is saved, not epoch %llu, the best one ('%s' is not at rank %d)\n",
            static_cast<unsigned long long>(best), best_file(best).c_str(), ranks.rank());
      }
    }
  }

  void finish(muster::training_step& step) {
    if (!chosen_.save.empty()) {
      if (device_) device_->download(arena_);
      if (!in_shards_) average_statistics(step.group(), *net_);
      if (step.group().rank() == 0) save(step.group());
    }
    timeline_.write(step.group());
  }

  const nn::flush_denormals flush_;
  muster::context& context_;
  const options& chosen_;
  const bool in_shards_;
  const image_data& data_;
  const std::string started_as_;
  const bool speaks_first_;  // True at rank 0 of the launch, which prints the header.
  model_description description_;
  std::unique_ptr<nn::network<float>> net_;
  muster::arena arena_;
  muster::any_optimizer optimizer_;
  muster::schedule schedule_;
  muster::loader loader_;
  muster::loader test_;
  muster::timeline timeline_;
  muster::tracker tracker_;
  std::vector<float> slopes_;
  std::unique_ptr<device_model> device_;  // Null if the host trains.
  std::optional<muster::training> training_;
  /// A duplicate of the ranks for shared statistics, so that their collectives need no common order with the
  /// collectives of gradients.
  std::optional<muster::group> statistics_;
};

}  // namespace

int run_program(int argc, char** argv, const program& which) {
  const auto body = [&](muster::context& context) {
    const auto chosen = parse_options(argc, argv, examples::workers_of(context), context.configuration(), which);
    if (context.launcher().rank == 0) {
      for (const auto& path : {chosen.json, chosen.save}) {
        if (!path.empty()) muster::require_writable(path);
      }
    }
    const auto data = open_images(chosen.data, chosen.test, chosen.seed, chosen.limit, chosen.holdout, chosen.side,
                                  chosen.scaled_alone, chosen.grey);  // Ranks that are threads share the data.
    examples::refuse_on_servers(context, {{"--sync-batch-norm", chosen.share_statistics},
                                          {"--stop-at-goal", chosen.stop_at_goal},
                                          {"--max-train-seconds", chosen.max_train_seconds > 0}});
    if (chosen.share_statistics && muster::training::sync_of_job(context).virtual_shards > 0) {
      throw muster::configuration_error(
          "--sync-batch-norm cannot be used with --virtual-shards (sums depend on the number of ranks); drop either "
          "flag");
    }
    context.run([&](muster::group& world) { run(context, world, data, chosen).train(); });
  };
  return muster::run_main(argc, argv, body, {.help = [&] { return help_text(which); }});
}

}  // namespace images
