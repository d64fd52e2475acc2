/* Loaded before a copy of ONNX Runtime whose cpuid instructions were replaced by ud2: answers each
   as the CPU does, but without the int8 dot products (VNNI, AMX). So a CPU with VNNI runs the
   kernels of one without it. If AVX2_ALONE is in the environment, AVX-512 is left out, too. */

#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

static int avx2_alone;

static void answer(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    (void)info;
    if (code[0] != 0x0f || code[1] != 0x0b) { /* not our ud2: fail as without us */
        signal(number, SIG_DFL);
        return;
    }
    unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX];
    unsigned a, b, c, d;
    __cpuid_count(leaf, part, a, b, c, d);
    if (leaf == 7 && part == 0) {
        if (avx2_alone)
            /* AVX512F, DQ, IFMA, PF, ER, CD, BW, VL */
            b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
        c &= ~(1u << 11);                           /* AVX512_VNNI */
        d &= ~(1u << 22 | 1u << 24 | 1u << 25);     /* AMX_BF16, AMX_TILE, AMX_INT8 */
    }
    if (leaf == 7 && part == 1) {
        a &= ~(1u << 4);                            /* AVX_VNNI */
        d &= ~(1u << 4);                            /* AVX_VNNI_INT8 */
    }
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void install(void)
{
    avx2_alone = getenv("AVX2_ALONE") != 0;
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &action, 0);
}
