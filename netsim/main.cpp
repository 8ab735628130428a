// gradtool_netsim: gradients on a simulated fabric, packet by packet, on ns-3.

namespace gradtool::netsim {
int run_program(int argc, char** argv);  // program.cpp; no header, so that nothing here includes CLI11
}

int main(int argc, char** argv) {
  return gradtool::netsim::run_program(argc, argv);
}
