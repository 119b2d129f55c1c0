#include "training.hpp"

#include <cmath>
#include <cstdio>
#include <optional>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/progress.hpp>
#include <muster/elastic/elastic.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/compress.hpp>
#include <muster/train/gradient_sync.hpp>
#include <muster/train/optimizer.hpp>
#include <muster/train/schedule.hpp>
#include <muster/train/timeline.hpp>
#include <muster/train/tracker.hpp>

#include "data.hpp"
#include "evaluation.hpp"
#include "loss.hpp"
#include "processor.hpp"
#include "saved_model.hpp"

namespace images {
namespace {

class run {
 public:
  run(muster::context& context, muster::group& world, const image_data& data, const options& chosen)
      : context_(context),
        world_(world),
        chosen_(chosen),
        what_{chosen.model, {data.height, data.width, data.channels}, data.classes},
        net_(make_model(what_, chosen.how)),
        arena_(context, net_->shapes()),
        sync_(arena_, {.codec = muster::compress(context.configuration()), .mode = muster::sync_mode_of(context)}),
        optimizer_(muster::make_optimizer(arena_, chosen.optimizer)),
        schedule_(muster::parse_schedule(chosen.schedule)),
        loader_(training_loader(data, chosen.seed, chosen.batch, chosen.augment, chosen.loader_threads)),
        test_(test_loader(data, 128 * static_cast<std::size_t>(world.size()))),
        timeline_(context),
        tracker_(world, {.goal = chosen.goal}),
        progress_(world.rank() == 0 && !context.elastic()) {
    net_->bind(arena_);
    net_->initialise(chosen.seed);
  }

  void train() {
    // Statistics of a rank's own are its own state; shared ones are the same everywhere.
    const auto kind = chosen_.share_statistics ? muster::state_kind::replicated : muster::state_kind::rank_local;
    muster::state state{arena_, optimizer_, schedule_, muster::shadowed_values{"batch_norm", net_->statistics(), kind},
                        loader_.cursor()};
    auto session = open_session();
    std::optional<muster::checkpoint> store;
    if (!chosen_.checkpoint.empty()) store.emplace(chosen_.checkpoint);
    if (chosen_.resume && store->load(session.group(), state) && session.group().rank() == 0) {
      std::printf("goes on after step %llu, in epoch %llu\n", static_cast<unsigned long long>(state.steps()),
                  static_cast<unsigned long long>(loader_.epoch() + 1));
    }
    bool more = true;
    while (more) {
      {
        auto batches = tracker_.batches();
        begin_ = muster::clock::now();
        seen_ = {};
        more = session.run(state, [&](muster::step& step) { train_step(step); },
                           {.epochs = chosen_.epochs, .steps = chosen_.steps});
      }
      if (!more) break;
      progress_.clear();
      nn::totals found;
      session.evaluate(state, [&](muster::step& step) {  // its changes are undone
        auto phase = tracker_.phase(muster::phase::metrics);
        sync_.average(step.group());
        average_statistics(step.group(), *net_);
        found = evaluate(step.group(), *net_, test_);
      });
      more = end_epoch(session.group(), found);
      if (store) store->save(session.group(), state, accuracy_);
    }
    save(session.group());
    if (session.group().rank() == 0) {
      print_results();
      write_report();
    }
    timeline_.write(session.group());
  }

 private:
  /// With `--elastic on` ranks may die and join in any step or evaluation; a death while an epoch's figures are added up
  /// ends the job.
  muster::session open_session() {
    if (!context_.elastic()) {
      if (world_.rank() == 0) print_header(world_);
      return muster::fixed_session(world_);
    }
    return muster::elastic::session(
        context_, {.on_rebuild = [this](muster::group& ranks, const muster::elastic::change& what) {
          if (ranks.rank() == 0 && what.generation == 1) print_header(ranks);
        }});
  }

  void train_step(muster::step& step) {
    const auto batch = [&] {
      auto phase = tracker_.phase(muster::phase::batch_load);
      return loader_.next(step.slice());
    }();
    auto backward = sync_.begin(step.group());
    backward.clear();
    backward.add_samples(batch.samples.size());
    backward.divided_by(static_cast<double>(batch.global_size));
    const nn::pass now{.images = batch.samples.size(),
                       .statistics = shared(step),
                       .samples = batch.samples,
                       .key = muster::mix(chosen_.seed) + step.number(),
                       .ready = [&](std::size_t tensor) { backward.ready(tensor); }};
    std::span<const float> logits;
    {
      auto phase = tracker_.phase(muster::phase::forward);
      logits = net_->forward(batch.values<float>(), now);
    }
    nn::totals sums;
    {
      auto phase = tracker_.phase(muster::phase::loss);
      slopes_.resize(logits.size());
      sums = nn::softmax_cross_entropy<float>(logits, batch.labels, net_->classes(),
                                              1.0 / static_cast<double>(batch.global_size), slopes_);
    }
    {
      auto phase = tracker_.phase(muster::phase::backward);
      net_->backward(slopes_, now);
    }
    {
      auto phase = tracker_.phase(muster::phase::aggregate);
      backward.wait();
    }
    {
      auto phase = tracker_.phase(muster::phase::optimizer_step);
      optimizer_.apply(schedule_(step));
    }
    sync_.end(step.group());
    seen_ += sums;
    tracker_.add_samples(batch.samples.size());
    if (progress_.active()) show_progress(step);
  }

  /// A duplicate of the step's ranks for the statistics, so that their collectives do not have to agree with those of
  /// gradients on an order.
  muster::group* shared(muster::step& step) {
    if (!chosen_.share_statistics) return nullptr;
    if (!statistics_ || generation_ != step.generation()) {
      statistics_.emplace(step.group().duplicate());
      generation_ = step.generation();
    }
    return &*statistics_;
  }

  /// Adds up and tells what the epoch came to; whether to go on.
  bool end_epoch(muster::group& ranks, const nn::totals& found) {
    std::array<double, 2> sums = {seen_.loss, static_cast<double>(seen_.images)};
    muster::allreduce(ranks, std::span(sums), muster::sum);
    const double images = static_cast<double>(std::max<std::uint64_t>(found.images, 1));
    const muster::epoch_metrics metrics{.train_loss = sums[0] / std::max(1.0, sums[1]),
                                        .val_loss = found.loss / images,
                                        .val_accuracy = static_cast<double>(found.top1) / images};
    if (!std::isfinite(metrics.train_loss + metrics.val_loss)) {
      throw muster::configuration_error("the training diverged (the loss is not finite any more with schedule " +
                                        chosen_.schedule + "); lower the learning rate");
    }
    schedule_.observe(metrics.val_accuracy);
    accuracy_ = metrics.val_accuracy;
    top5_ = static_cast<double>(found.top5) / images;
    const auto& report = tracker_.end_epoch(ranks, metrics);
    if (ranks.rank() == 0) {
      std::printf("%5llu  %10.4f  %10.4f  %8.4f  %8.4f  %8.2f  %10.4g\n",
                  static_cast<unsigned long long>(loader_.epoch() + 1), metrics.train_loss, metrics.val_loss,
                  metrics.val_accuracy, top5_, report.train_seconds, report.samples_per_second());
      std::fflush(stdout);
    }
    return !(chosen_.stop_at_goal && tracker_.time_to_goal());
  }

  void save(muster::group& ranks) {
    if (chosen_.save.empty()) return;
    sync_.average(ranks);
    average_statistics(ranks, *net_);
    if (ranks.rank() == 0) save_model(chosen_.save, what_, *net_);
  }

  void show_progress(const muster::step& step) {
    const double spent = muster::seconds_since(begin_);
    const double done = static_cast<double>(loader_.step() + 1), all = static_cast<double>(loader_.steps_per_epoch());
    const double images = static_cast<double>(seen_.images);
    char line[128];
    std::snprintf(line, sizeof line, "epoch %llu of %llu, step %.0f of %.0f, %.0f images/s, loss %.4f, %.0f s to go",
                  static_cast<unsigned long long>(step.epoch() + 1), static_cast<unsigned long long>(chosen_.epochs),
                  done, all, images * step.group().size() / spent, seen_.loss / std::max(1.0, images),
                  spent / done * (all - done));
    progress_.update(line);
  }

  void print_header(const muster::group& ranks) const {
    std::printf("%s: %zu parameters, %.1f million operations an image and step, %d rank%s (%s)\n%s, %s\n",
                chosen_.model.c_str(), net_->parameter_count(), net_->operations() * 1e-6, ranks.size(),
                ranks.size() == 1 ? "" : "s", std::string(ranks.abilities().name).c_str(),
                std::string(loader_.name()).c_str(), describe(chosen_).c_str());
    std::printf("\nepoch  train loss    val loss     top-1     top-5   seconds    images/s\n");
    std::fflush(stdout);
  }

  void print_results() const {
    if (tracker_.epochs().empty()) {
      std::printf("nothing was left to train\n");
      return;
    }
    double seconds = 0, images = 0, communication = 0;
    for (const auto& epoch : tracker_.epochs()) {
      seconds += epoch.train_seconds;
      images += static_cast<double>(epoch.samples);
      communication += epoch.communication_seconds;
    }
    std::printf("\ntop-1 accuracy  %.4f\ntop-5 accuracy  %.4f\nimages/s        %.4g\n", accuracy_, top5_,
                images / seconds);
    std::printf("batch time      %.2f s, of it communicating %.2f s (slowest rank)\n", seconds, communication);
    if (!chosen_.goal.metric.empty()) {
      const auto reached = tracker_.time_to_goal();
      if (reached) {
        std::printf("time to goal    %.2f s (%s %g)\n", *reached, chosen_.goal.metric.c_str(), chosen_.goal.value);
      } else {
        std::printf("time to goal    not reached (%s %g)\n", chosen_.goal.metric.c_str(), chosen_.goal.value);
      }
    }
    std::fflush(stdout);
  }

  void write_report() {
    if (chosen_.json.empty()) return;
    tracker_.annotate("data", std::string(loader_.name()));
    tracker_.annotate("model", chosen_.model);
    tracker_.annotate("options", describe(chosen_));
    char text[32];
    std::snprintf(text, sizeof text, "%.6f", top5_);
    tracker_.annotate("top5_accuracy", text);
    tracker_.write(chosen_.json);
  }

  const nn::flush_denormals flush_;
  muster::context& context_;
  muster::group& world_;
  const options& chosen_;
  model_description what_;
  std::unique_ptr<nn::network<float>> net_;
  muster::arena arena_;
  muster::gradient_sync sync_;
  muster::any_optimizer optimizer_;
  muster::schedule schedule_;
  muster::any_loader loader_;
  muster::any_loader test_;
  muster::timeline timeline_;
  muster::tracker tracker_;
  muster::progress_line progress_;
  std::optional<muster::group> statistics_;
  std::uint64_t generation_ = 0;
  std::vector<float> slopes_;
  nn::totals seen_;
  muster::clock::time_point begin_{};
  double accuracy_ = 0, top5_ = 0;
};

}  // namespace

int run_program(int argc, char** argv, const program& which) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    const auto chosen = parse_options(argc, argv, context.ranks(), context.configuration(), which);
    if (chosen.help) {
      if (context.launcher().rank == 0) std::fputs(help_text(which).c_str(), stdout);
      return;
    }
    if (context.launcher().rank == 0) {
      for (const auto& path : {chosen.json, chosen.save}) {
        if (!path.empty()) muster::require_writable(path);
      }
    }
    const auto data = open_images(chosen.data, chosen.seed, chosen.limit);  // ranks that are threads share it
    context.run([&](muster::group& world) {
      require_same_everywhere(world, data);
      run(context, world, data, chosen).train();
    });
  });
}

}  // namespace images
