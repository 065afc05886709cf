"""The Space. The page itself is `ctxmix_hf.demo`, so that `ctxmix demo` serves exactly the same one."""

from ctxmix_hf.demo import build, launch

if __name__ == "__main__":
    launch()
else:
    demo = build()
