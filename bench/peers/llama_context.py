"""llama.cpp through llama-cpp-python's plain bindings, for the comparisons beside this file."""

import ctypes
import random
import time

import llama_cpp


@llama_cpp.llama_log_callback
def _no_log(_level, _text, _user_data):
    pass


class LlamaCpp:
    """One llama.cpp context that is prefilled and decoded; beyond the model's own context RoPE is scaled."""

    def __init__(self, path, num_threads, num_tokens, chunk_tokens):
        llama_cpp.llama_log_set(_no_log, None)
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_tokens
        params.n_batch = params.n_ubatch = chunk_tokens
        params.n_threads = params.n_threads_batch = num_threads
        params.n_seq_max = 2  # one to decode, one to fill the first one's cache from
        params.kv_unified = True
        self.max_position = llama_cpp.llama_model_n_ctx_train(self._model)
        if num_tokens > self.max_position:
            params.rope_scaling_type = llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN
            params.rope_freq_scale = self.max_position / num_tokens
            params.yarn_orig_ctx = self.max_position
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit(f"llama.cpp cannot create a context of {num_tokens} tokens")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        ids = random.Random(1)
        self._tokens = (llama_cpp.llama_token * num_tokens)(*(ids.randrange(vocab_size) for _ in range(num_tokens)))
        self._chunk_tokens = chunk_tokens

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def _run(self, start, count):
        pointer = type(self._tokens)._type_
        tokens = (pointer * count).from_buffer(self._tokens, start * 4)
        if llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(tokens, count)) != 0:
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(self._context)

    def prefill(self, num_tokens):
        """Seconds for `num_tokens` tokens from position 0."""
        self.clear()
        return self.extend(0, num_tokens)

    def extend(self, start, end, progress=lambda at: None):
        """Seconds for tokens [start, end), which follow what is in the cache."""
        begin = time.perf_counter()
        for at in range(start, end, self._chunk_tokens):
            self._run(at, min(self._chunk_tokens, end - at))
            progress(at)
        return time.perf_counter() - begin

    def fill(self, num_prefilled, depth):
        """Brings the cache, which holds the first `num_prefilled` tokens or more, to `depth` tokens: copies of the
        first `num_prefilled`, moved to the positions that follow. As much to read as real ones, without their prefill.
        """
        self.truncate(num_prefilled)
        memory = llama_cpp.llama_get_memory(self._context)
        size = llama_cpp.llama_state_seq_get_size(self._context, 0)
        state = (ctypes.c_uint8 * size)()
        if llama_cpp.llama_state_seq_get_data(self._context, state, size, 0) != size:
            raise SystemExit("llama.cpp cannot copy its state")
        for begin in range(num_prefilled, depth, num_prefilled):
            if llama_cpp.llama_state_seq_set_data(self._context, state, size, 1) != size:
                raise SystemExit(f"llama.cpp cannot hold {depth} tokens")
            llama_cpp.llama_memory_seq_add(memory, 1, 0, -1, begin)
            llama_cpp.llama_memory_seq_cp(memory, 1, 0, -1, -1)
            llama_cpp.llama_memory_seq_rm(memory, 1, -1, -1)
        self.truncate(depth)

    def truncate(self, num_tokens):
        """Takes everything but the first `num_tokens` tokens out of the cache."""
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), 0, num_tokens, -1)

    def decode(self, start, count):
        """Seconds of each of `count` steps that follow what is in the cache."""
        seconds = []
        for i in range(count):
            begin = time.perf_counter()
            self._run(start + i, 1)
            seconds.append(time.perf_counter() - begin)
        return seconds
