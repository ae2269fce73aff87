#pragma once

#include "engine/chat_template/jinja_run.h"

namespace tokenbutler {

// Nested expressions and statements of one rendering, calls of macros included: about a kilobyte
// of stack each.
inline constexpr int kMaxJinjaDepth = 700;

class JinjaRun::DepthGuard {
 public:
  explicit DepthGuard(JinjaRun* run) : run_(run) { ++run_->depth_; }
  ~DepthGuard() { --run_->depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

  absl::Status status() const {
    if (run_->depth_ <= kMaxJinjaDepth) return absl::OkStatus();
    return ResourceExhaustedError("macros, loops and expressions nest deeper than {}",
                                  kMaxJinjaDepth);
  }

 private:
  JinjaRun* run_;
};

class JinjaRun::ScopeGuard {
 public:
  ScopeGuard(JinjaRun* run, JinjaScope* parent) : run_(run), outer_(run->scope_) {
    run_->scope_ = run_->NewScope(parent);
  }
  explicit ScopeGuard(JinjaRun* run) : ScopeGuard(run, run->scope_) {}
  ~ScopeGuard() {
    run_->ReleaseScope(run_->scope_);
    run_->scope_ = outer_;
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  JinjaRun* run_;
  JinjaScope* outer_;
};

class JinjaRun::Capture {
 public:
  explicit Capture(JinjaRun* run) : run_(run), outer_(run->out_) { run_->out_ = &builder_; }
  ~Capture() { run_->out_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  JinjaText Take() { return builder_.Build(); }

 private:
  JinjaRun* run_;
  JinjaTextBuilder* outer_;
  JinjaTextBuilder builder_;
};

}  // namespace tokenbutler
