# cuda.mk - the CUDA backend, included by the Makefile when CUDA=1. Objects live in the variant's directory like all
# others (default variant of CUDA builds: release-cuda). CUDA_ARCH lists the architectures to compile for; 90a is
# Hopper with its own matrix instructions, the others run portable kernels. Needs nvcc >= 12.8 for 120.
CUDA_HOME  ?= $(firstword $(wildcard /usr/local/cuda /opt/cuda))
NVCC       ?= $(if $(CUDA_HOME),$(CUDA_HOME)/bin/nvcc,nvcc)
CUDA_ARCH  ?= 90a
NVCC_FLAGS := -O3 -std=c++20 -lineinfo -Isrc --compiler-options -Wall,-Wextra,-O2 -diag-suppress 20012 \
              $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a),code=sm_$(a)) \
              $(if $(filter 90a,$(CUDA_ARCH)),-DCU_SM90A) $(NVCC_EXTRA)

SRCS       := $(filter-out src/ops/none.c,$(SRCS))
CUDA_SRCS  := $(sort $(wildcard cuda/*.cu))
CUDA_OBJS  := $(CUDA_SRCS:%.cu=$(B)/%.o)
LDLIBS_     += -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -lpthread -ldl -lrt
# these calls pass through cuda/graph.cu, which may hold launches back and start them as a graph
CUDA_WRAP  := cudaLaunchKernel __cudaLaunchKernel cudaLaunchKernelExC cudaFuncSetAttribute cudaStreamSynchronize \
              cudaStreamQuery cudaStreamBeginCapture cudaStreamWaitEvent cudaEventRecord cudaMemcpy cudaMemcpyAsync \
              cudaMemcpy2DAsync cudaMemsetAsync cudaFree
LDLIBS_     += $(CUDA_WRAP:%=-Wl,--wrap=%)

$(B)/cuda/%.o: cuda/%.cu cuda/cuda.mk Makefile
	@mkdir -p $(@D)
	$(call say,NVCC $<)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(NVCC_$(*F)) -MD -MP -MF $(@:.o=.d) -c $< -o $@

# the router repeats the CPU's arithmetic operation by operation, so that both choose the same experts
NVCC_route := --fmad=false

-include $(CUDA_OBJS:.o=.d)

# what the tests attach instead of a profiler
build-tests test-e2e: $(B)/tests/nvtx_log.so
$(B)/tests/nvtx_log.so: tests/nvtx_log.c cuda/cuda.mk
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fPIC -shared -isystem $(CUDA_HOME)/include -o $@ $<
