// A surrogate of a solver, in Eigen: a network with one hidden layer that predicts the change of a cell in the next
// steps from the cell and its neighbours. The network learns while the solver runs.
#pragma once

#include <Eigen/Dense>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <muster/muster.hpp>

class surrogate {
 public:
  /// Makes a network for a plate of `cells` by `cells` cells, with the same parameters at every rank.
  surrogate(muster::context& context, int cells)
      : ranks_(context.world()),
        cells_(cells),
        arena_(context, {{"w1", {hidden, inputs}}, {"b1", {hidden}}, {"w2", {hidden}}, {"b2", {}}}),
        sync_(arena_),
        optimizer_(arena_) {
    muster::random_stream random(1);
    for (float& weight : arena_.parameter(0)) weight = 0.4f * static_cast<float>(random.normal());
    for (float& weight : arena_.parameter(2)) weight = 0.07f * static_cast<float>(random.normal());
  }

  /// Takes the rows of this rank before a step of the solver, between two rows of the neighbours: the row after the
  /// first of them is row `first` of the plate. Every `ahead` steps predicts the drawn cells, compares the predictions
  /// with the solver, learns from them, and draws other cells. Every rank draws the same cells of the whole plate and
  /// uses those in its rows, so the ranks use different numbers of cells. Collective.
  void follow(int step, int first, std::span<const double> rows) {
    if (step % ahead != 0) return;
    if (step > 0) learn(rows);
    const int width = cells_ + 2, count = static_cast<int>(rows.size()) / width - 2;
    drawn_.clear();
    muster::random_stream random(2, static_cast<std::uint64_t>(step));
    const auto below = [&] { return static_cast<int>(random.below(static_cast<std::uint64_t>(cells_))); };
    for (int draw = 0; draw < draws; ++draw) {
      const int row = below() - first, column = below();
      if (row >= 0 && row < count) drawn_.push_back((row + 1) * width + column + 1);
    }
    before_.resize(static_cast<Eigen::Index>(drawn_.size()), 1);
    inputs_.resize(before_.rows(), inputs);
    for (Eigen::Index s = 0; s < before_.rows(); ++s) {  // the temperature and its derivatives
      const double* const at = &rows[static_cast<std::size_t>(drawn_[static_cast<std::size_t>(s)])];
      const double slope = cells_ / 4.0, bend = cells_ * cells_ / 20.0;
      before_(s, 0) = *at;
      inputs_(s, 0) = static_cast<float>(*at);
      inputs_(s, 1) = static_cast<float>((at[width] - at[-width]) * slope);
      inputs_(s, 2) = static_cast<float>((at[1] - at[-1]) * slope);
      inputs_(s, 3) = static_cast<float>((at[width] - 2 * *at + at[-width]) * bend);
      inputs_(s, 4) = static_cast<float>((at[1] - 2 * *at + at[-1]) * bend);
      inputs_(s, 5) = static_cast<float>((at[width + 1] - at[width - 1] - at[1 - width] + at[-1 - width]) * bend / 4);
    }
  }

  /// Prints the error of the predictions in proportion to the changes, at first and at the end. Collective.
  void report() {
    muster::allreduce(ranks_, squares_, muster::sum);
    const auto error = [&](std::size_t at) { return std::sqrt(squares_[at] / squares_[at + 1]); };
    if (ranks_.rank() == 0)
      std::printf("the surrogate errs by %.3f of the change in its first predictions, and by %.3f in its last\n",
                  error(0), error(squares_.size() - 2));
  }

 private:
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  static constexpr std::size_t inputs = 6, hidden = 16;
  static constexpr int ahead = 2, draws = 96;

  void learn(std::span<const double> rows) {
    const Eigen::Index samples = inputs_.rows();
    matrix change(samples, 1);
    for (Eigen::Index s = 0; s < samples; ++s)
      change(s, 0) =
          static_cast<float>((rows[static_cast<std::size_t>(drawn_[static_cast<std::size_t>(s)])] - before_(s, 0)) * 4 *
                             cells_ * cells_ / ahead);
    auto pass = sync_.begin(ranks_);
    const auto parameter = [&](std::size_t t, Eigen::Index n, Eigen::Index m) {
      return Eigen::Map<const matrix>(pass.parameter(t).data(), n, m);
    };
    const auto gradient = [&](std::size_t t, Eigen::Index n, Eigen::Index m) {
      return Eigen::Map<matrix>(pass.gradient(t).data(), n, m);
    };
    const auto w1 = parameter(0, hidden, inputs), b1 = parameter(1, 1, hidden), w2 = parameter(2, 1, hidden);
    const matrix h = ((inputs_ * w1.transpose()).rowwise() + b1.row(0)).array().tanh();
    const matrix error = ((h * w2.transpose()).array() + pass.parameter(3)[0]).matrix() - change;
    if (learned_++ % 100 == 0) squares_.insert(squares_.end(), 2, 0.0);
    squares_.end()[-2] += error.squaredNorm();
    squares_.end()[-1] += change.squaredNorm();

    pass.add_samples(static_cast<std::uint64_t>(samples));
    pass.clear();
    if (samples > 0) {  // the gradients of half the squared error
      const matrix back = (error * w2).array() * (1 - h.array().square());
      gradient(3, 1, 1)(0, 0) = error.sum();
      gradient(2, 1, hidden) = error.transpose() * h;
      gradient(1, 1, hidden) = back.colwise().sum();
      gradient(0, hidden, inputs) = back.transpose() * inputs_;
    }
    pass.end_pass();
    pass.wait();  // the mean over the cells of all ranks
    optimizer_.apply(0.03 / std::sqrt(1 + learned_ / 200.0));
    sync_.commit();
  }

  muster::group& ranks_;
  int cells_;
  muster::arena arena_;
  muster::gradient_sync sync_;
  muster::adam optimizer_;
  std::vector<int> drawn_;  // the places of the drawn cells in the rows
  Eigen::MatrixXd before_;  // their temperatures then
  matrix inputs_;
  int learned_ = 0;
  std::vector<double> squares_;  // for each hundred steps of the training, the squared errors and changes
};
