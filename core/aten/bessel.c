/* Rows: Bessel and Airy functions. Coefficients: Cephes (j0.c, j1.c, k0.c, k1.c, airy.c), highest first, as in
 * ATen/native/Math.h. */
#include <math.h>

#include "aten/elementwise.h"

#define COUNT(table) ((int)(sizeof table / sizeof *table))
#define SQRT_2_PI 0.797884560802865355879892119868763737 /* sqrt(2 / pi) */
#define TWO_PI 0.636619772367581343075535053490057448    /* 2 / pi */
#define PI_4 0.785398163397448309615660845819875721

/* clang-format off */
static const double j0_pp[] = {7.96936729297347051624e-04, 8.28352392107440799803e-02, 1.23953371646414299388e+00, 5.44725003058768775090e+00, 8.74716500199817011941e+00, 5.30324038235394892183e+00, 9.99999999999999997821e-01};
static const double j0_pq[] = {9.24408810558863637013e-04, 8.56288474354474431428e-02, 1.25352743901058953537e+00, 5.47097740330417105182e+00, 8.76190883237069594232e+00, 5.30605288235394617618e+00, 1.00000000000000000218e+00};
static const double j0_qp[] = {-1.13663838898469149931e-02, -1.28252718670509318512e+00, -1.95539544257735972385e+01, -9.32060152123768231369e+01, -1.77681167980488050595e+02, -1.47077505154951170175e+02, -5.14105326766599330220e+01, -6.05014350600728481186e+00};
static const double j0_qq[] = {6.43178256118178023184e+01, 8.56430025976980587198e+02, 3.88240183605401609683e+03, 7.24046774195652478189e+03, 5.93072701187316984827e+03, 2.06209331660327847417e+03, 2.42005740240291393179e+02};
static const double j0_rp[] = {-4.79443220978201773821e+09, 1.95617491946556577543e+12, -2.49248344360967716204e+14, 9.70862251047306323952e+15};
static const double j0_rq[] = {4.99563147152651017219e+02, 1.73785401676374683123e+05, 4.84409658339962045305e+07, 1.11855537045356834862e+10, 2.11277520115489217587e+12, 3.10518229857422583814e+14, 3.18121955943204943306e+16, 1.71086294081043136091e+18};
static const double j1_pp[] = {7.62125616208173112003e-04, 7.31397056940917570436e-02, 1.12719608129684925192e+00, 5.11207951146807644818e+00, 8.42404590141772420927e+00, 5.21451598682361504063e+00, 1.00000000000000000254e+00};
static const double j1_pq[] = {5.71323128072548699714e-04, 6.88455908754495404082e-02, 1.10514232634061696926e+00, 5.07386386128601488557e+00, 8.39985554327604159757e+00, 5.20982848682361821619e+00, 9.99999999999999997461e-01};
static const double j1_qp[] = {5.10862594750176621635e-02, 4.98213872951233449420e+00, 7.58238284132545283818e+01, 3.66779609360150777800e+02, 7.10856304998926107277e+02, 5.97489612400613639965e+02, 2.11688757100572135698e+02, 2.52070205858023719784e+01};
static const double j1_qq[] = {7.42373277035675149943e+01, 1.05644886038262816351e+03, 4.98641058337653607651e+03, 9.56231892404756170795e+03, 7.99704160447350683650e+03, 2.82619278517639096600e+03, 3.36093607810698293419e+02};
static const double j1_rp[] = {-8.99971225705559398224e+08, 4.52228297998194034323e+11, -7.27494245221818276015e+13, 3.68295732863852883286e+15};
static const double j1_rq[] = {6.20836478118054335476e+02, 2.56987256757748830383e+05, 8.35146791431949253037e+07, 2.21511595479792499675e+10, 4.74914122079991414898e+12, 7.84369607876235854894e+14, 8.95222336184627338078e+16, 5.32278620332680085395e+18};
static const double y0_yp[] = {1.55924367855235737965e+04, -1.46639295903971606143e+07, 5.43526477051876500413e+09, -9.82136065717911466409e+11, 8.75906394395366999549e+13, -3.46628303384729719441e+15, 4.42733268572569800351e+16, -1.84950800436986690637e+16};
static const double y0_yq[] = {1.04128353664259848412e+03, 6.26107330137134956842e+05, 2.68919633393814121987e+08, 8.64002487103935000337e+10, 2.02979612750105546709e+13, 3.17157752842975028269e+15, 2.50596256172653059228e+17};
static const double y1_yp[] = {1.26320474790178026440e+09, -6.47355876379160291031e+11, 1.14509511541823727583e+14, -8.12770255501325109621e+15, 2.02439475713594898196e+17, -7.78877196265950026825e+17};
static const double y1_yq[] = {5.94301592346128195359e+02, 2.35564092943068577943e+05, 7.34811944459721705660e+07, 1.87601316108706159478e+10, 3.88231277496238566008e+12, 6.20557727146953693363e+14, 6.87141087355300489866e+16, 3.97270608116560655612e+18};
static const double k0_small[] = {1.37446543561352307156e-16, 4.25981614279661018399e-14, 1.03496952576338420167e-11, 1.90451637722020886025e-09, 2.53479107902614945675e-07, 2.28621210311945178607e-05, 1.26461541144692592338e-03, 3.59799365153615016266e-02, 3.44289899924628486886e-01, -5.35327393233902768720e-01};
static const double k0_large[] = {5.30043377268626276149e-18, -1.64758043015242134646e-17, 5.21039150503902756861e-17, -1.67823109680541210385e-16, 5.51205597852431940784e-16, -1.84859337734377901440e-15, 6.34007647740507060557e-15, -2.22751332699166985548e-14, 8.03289077536357521100e-14, -2.98009692317273043925e-13, 1.14034058820847496303e-12, -4.51459788337394416547e-12, 1.85594911495471785253e-11, -7.95748924447710747776e-11, 3.57739728140030116597e-10, -1.69753450938905987466e-09, 8.57403401741422608519e-09, -4.66048989768794782956e-08, 2.76681363944501510342e-07, -1.83175552271911948767e-06, 1.39498137188764993662e-05, -1.28495495816278026384e-04, 1.56988388573005337491e-03, -3.14481013119645005427e-02, 2.44030308206595545468e+00};
static const double k1_small[] = {-7.02386347938628759343e-18, -2.42744985051936593393e-15, -6.66690169419932900609e-13, -1.41148839263352776110e-10, -2.21338763073472585583e-08, -2.43340614156596823496e-06, -1.73028895751305206302e-04, -6.97572385963986435018e-03, -1.22611180822657148235e-01, -3.53155960776544875667e-01, 1.52530022733894777053e+00};
static const double k1_large[] = {-5.75674448366501715755e-18, 1.79405087314755922667e-17, -5.68946255844285935196e-17, 1.83809354436663880070e-16, -6.05704724837331885336e-16, 2.03870316562433424052e-15, -7.01983709041831346144e-15, 2.47715442448130437068e-14, -8.97670518232499435011e-14, 3.34841966607842919884e-13, -1.28917396095102890680e-12, 5.13963967348173025100e-12, -2.12996783842756842877e-11, 9.21831518760500529508e-11, -4.19035475934189648750e-10, 2.01504975519703286596e-09, -1.03457624656780970260e-08, 5.74108412545004946722e-08, -3.50196060308781257119e-07, 2.40648494783721712015e-06, -1.93619797416608296024e-05, 1.95215518471351631108e-04, -2.85781685962277938680e-03, 1.03923736576817238437e-01, 2.72062619048444266945e+00};
static const double airy_an[] = {3.46538101525629032477e-01, 1.20075952739645805542e+01, 7.62796053615234516538e+01, 1.68089224934630576269e+02, 1.59756391350164413639e+02, 7.05360906840444183113e+01, 1.40264691163389668864e+01, 9.99999999999999995305e-01};
static const double airy_ad[] = {5.67594532638770212846e-01, 1.47562562584847203173e+01, 8.45138970141474626562e+01, 1.77318088145400459522e+02, 1.64234692871529701831e+02, 7.14778400825575695274e+01, 1.40959135607834029598e+01, 1.00000000000000000470e+00};
static const double airy_afn[] = {-1.31696323418331795333e-01, -6.26456544431912369773e-01, -6.93158036036933542233e-01, -2.79779981545119124951e-01, -4.91900132609500318020e-02, -4.06265923594885404393e-03, -1.59276496239262096340e-04, -2.77649108155232920844e-06, -1.67787698489114633780e-08};
static const double airy_afd[] = {1.33560420706553243746e+01, 3.26825032795224613948e+01, 2.67367040941499554804e+01, 9.18707402907259625840e+00, 1.47529146771666414581e+00, 1.15687173795188044134e-01, 4.40291641615211203805e-03, 7.54720348287414296618e-05, 4.51850092970580378464e-07};
static const double airy_agn[] = {1.97339932091685679179e-02, 3.91103029615688277255e-01, 1.06579897599595591108e+00, 9.39169229816650230044e-01, 3.51465656105547619242e-01, 6.33888919628925490927e-02, 5.85804113048388458567e-03, 2.82851600836737019778e-04, 6.98793669997260967291e-06, 8.11789239554389293311e-08, 3.41551784765923618484e-10};
static const double airy_agd[] = {9.30892908077441974853e+00, 1.98352928718312140417e+01, 1.55646628932864612953e+01, 5.47686069422975497931e+00, 9.54293611618961883998e-01, 8.64580826352392193095e-02, 4.12656523824222607191e-03, 1.01259085116509135510e-04, 1.17166733214413521882e-06, 4.91834570062930015649e-09};
/* clang-format on */

#define RATIO(z, above, below) tpu_div(b, horner(b, z, COUNT(above), above), horner(b, z, COUNT(below), below))

static tpu_val root(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_SQRT, x); }
static tpu_val sine(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_SINE, x); }
static tpu_val cosine(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_COSINE, x); }

/* sqrt(2 / (pi x)) (p first(x - phase) + sign 5/x q second(x - phase)), for x > 5. */
static tpu_val far_wave(tpu_build *b, tpu_val x, tpu_val p, tpu_val q, double phase, bool second_kind) {
  tpu_val t = add_c(b, x, -phase), w = c_div(b, 5, x);
  tpu_val c = cosine(b, t), s = sine(b, t);
  tpu_val wave = second_kind ? tpu_add(b, tpu_mul(b, p, s), tpu_mul(b, tpu_mul(b, w, q), c))
                             : tpu_sub(b, tpu_mul(b, p, c), tpu_mul(b, tpu_mul(b, w, q), s));
  return tpu_div(b, mul_c(b, wave, SQRT_2_PI), root(b, x));
}

static tpu_val j0_far(tpu_build *b, tpu_val x, bool second_kind) {
  tpu_val z = c_div(b, 25, square(b, x));
  return far_wave(b, x, RATIO(z, j0_pp, j0_pq), RATIO(z, j0_qp, j0_qq), PI_4, second_kind);
}

static tpu_val j1_far(tpu_build *b, tpu_val x, bool second_kind) {
  tpu_val z = square(b, c_div(b, 5, x));
  return far_wave(b, x, RATIO(z, j1_pp, j1_pq), RATIO(z, j1_qp, j1_qq), 3 * PI_4, second_kind);
}

static tpu_val bessel_j0(tpu_build *b, tpu_val x) {
  x = tpu_unary(b, TPU_HLO_ABS, x);
  tpu_val z = square(b, x);
  tpu_val zeros = tpu_mul(b, add_c(b, z, -5.78318596294678452118), add_c(b, z, -30.4712623436620863991));
  tpu_val near = tpu_mul(b, zeros, RATIO(z, j0_rp, j0_rq));
  near = tpu_select(b, compare_c(b, TPU_LT, x, 1e-5), c_sub(b, 1, mul_c(b, z, 0.25)), near);
  return tpu_select(b, compare_c(b, TPU_LE, x, 5), near, j0_far(b, x, false));
}

static tpu_val bessel_j1(tpu_build *b, tpu_val signed_x) {
  tpu_val x = tpu_unary(b, TPU_HLO_ABS, signed_x), z = square(b, x);
  tpu_val zeros = tpu_mul(b, add_c(b, z, -14.6819706421238932572), add_c(b, z, -49.2184563216946036703));
  tpu_val near = tpu_mul(b, tpu_mul(b, RATIO(z, j1_rp, j1_rq), x), zeros);
  tpu_val y = tpu_select(b, compare_c(b, TPU_LE, x, 5), near, j1_far(b, x, false));
  return tpu_select(b, compare_c(b, TPU_LT, signed_x, 0), tpu_neg(b, y), y);
}

/* What a function of x > 0 is elsewhere. */
static tpu_val on_positive(tpu_build *b, tpu_val x, tpu_val y, double at_zero) {
  y = select_c(b, compare_c(b, TPU_LT, x, 0), (double)NAN, y);
  return select_c(b, compare_c(b, TPU_EQ, x, 0), at_zero, y);
}

static tpu_val bessel_y0(tpu_build *b, tpu_val x) {
  tpu_val z = square(b, x);
  tpu_val near = tpu_add(b, RATIO(z, y0_yp, y0_yq), tpu_mul(b, mul_c(b, tpu_log(b, x), TWO_PI), bessel_j0(b, x)));
  return on_positive(b, x, tpu_select(b, compare_c(b, TPU_LE, x, 5), near, j0_far(b, x, true)), -(double)INFINITY);
}

static tpu_val bessel_y1(tpu_build *b, tpu_val x) {
  tpu_val z = square(b, x);
  tpu_val tail = tpu_sub(b, tpu_mul(b, bessel_j1(b, x), tpu_log(b, x)), c_div(b, 1, x));
  tpu_val near = tpu_add(b, tpu_mul(b, x, RATIO(z, y1_yp, y1_yq)), mul_c(b, tail, TWO_PI));
  return on_positive(b, x, tpu_select(b, compare_c(b, TPU_LE, x, 5), near, j1_far(b, x, true)), -(double)INFINITY);
}

/* K0 and K1, or exp(x) times them. */
static tpu_val bessel_k(tpu_build *b, int order, bool scaled, tpu_val x) {
  tpu_val z = add_c(b, square(b, x), -2), w = add_c(b, c_div(b, 8, x), -2), log_half = tpu_log(b, mul_c(b, x, 0.5));
  tpu_val near, far;
  if (order == 0) {
    near = tpu_sub(b, chebyshev_series(b, z, COUNT(k0_small), k0_small), tpu_mul(b, log_half, bessel_i(b, 0, x)));
    far = chebyshev_series(b, w, COUNT(k0_large), k0_large);
  } else {
    near = tpu_add(b, tpu_mul(b, log_half, bessel_i(b, 1, x)), tpu_div(b, chebyshev_series(b, z, COUNT(k1_small), k1_small), x));
    far = chebyshev_series(b, w, COUNT(k1_large), k1_large);
  }
  far = tpu_div(b, far, root(b, x));
  if (scaled)
    near = tpu_mul(b, near, tpu_exp(b, x));
  else
    far = tpu_mul(b, far, tpu_exp(b, tpu_neg(b, x)));
  return on_positive(b, x, tpu_select(b, compare_c(b, TPU_LE, x, 2), near, far), (double)INFINITY);
}

#define INV_SQRT_PI 0.564189583547756286948
static tpu_val airy_ai(tpu_build *b, tpu_val x) {
  tpu_val size = tpu_unary(b, TPU_HLO_ABS, x), zeta = mul_c(b, tpu_mul(b, size, root(b, size)), 2.0 / 3);
  tpu_val quarter = root(b, root(b, size));
  /* x < -2.09 */
  tpu_val z = c_div(b, 1, zeta), zz = square(b, z), t = add_c(b, zeta, PI_4);
  tpu_val f = add_c(b, tpu_mul(b, zz, RATIO(zz, airy_afn, airy_afd)), 1), g = tpu_mul(b, z, RATIO(zz, airy_agn, airy_agd));
  tpu_val low = tpu_sub(b, tpu_mul(b, sine(b, t), f), tpu_mul(b, cosine(b, t), g));
  low = tpu_div(b, mul_c(b, low, INV_SQRT_PI), quarter);
  /* x >= 2.09 */
  tpu_val high = mul_c(b, RATIO(z, airy_an, airy_ad), INV_SQRT_PI / 2);
  high = tpu_div(b, high, tpu_mul(b, quarter, tpu_exp(b, zeta)));
  high = select_c(b, compare_c(b, TPU_GT, x, 103.892), 0, high);
  /* Between, the Maclaurin series; its terms fall below 1e-17 of the sum before the last. */
  tpu_val cube = tpu_mul(b, square(b, x), x), m = tpu_full_like(b, x, 1), n = x;
  f = m, g = n;
  for (int i = 1; i <= 14; i++) {
    m = div_c(b, tpu_mul(b, m, cube), (3.0 * i - 1) * (3.0 * i));
    n = div_c(b, tpu_mul(b, n, cube), (3.0 * i) * (3.0 * i + 1));
    f = tpu_add(b, f, m);
    g = tpu_add(b, g, n);
  }
  tpu_val middle = tpu_sub(b, mul_c(b, f, 0.355028053887817239260), mul_c(b, g, 0.258819403792806798405));
  tpu_val y = tpu_select(b, compare_c(b, TPU_LT, x, -2.09), low, tpu_select(b, compare_c(b, TPU_GE, x, 2.09), high, middle));
  return select_c(b, compare_c(b, TPU_EQ, size, (double)INFINITY), (double)NAN, y);
}

static tpu_val spherical_j0(tpu_build *b, tpu_val x) {
  static const double series[] = {1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1};
  tpu_val size = tpu_unary(b, TPU_HLO_ABS, x);
  tpu_val y =
      tpu_select(b, compare_c(b, TPU_LT, size, 0.5), horner(b, square(b, x), COUNT(series), series), tpu_div(b, sine(b, x), x));
  return select_c(b, compare_c(b, TPU_EQ, size, (double)INFINITY), 0, y);
}

void lower_bessel(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x, y = {0};
  tpu_dtype dtype = math_float_operands(b, a, 1, &x);
  switch (a->row->rule) {
    case BESSEL_J0: y = bessel_j0(b, x); break;
    case BESSEL_J1: y = bessel_j1(b, x); break;
    case BESSEL_Y0: y = bessel_y0(b, x); break;
    case BESSEL_Y1: y = bessel_y1(b, x); break;
    case BESSEL_I0: y = bessel_i(b, 0, x); break;
    case BESSEL_I1: y = bessel_i(b, 1, x); break;
    case BESSEL_K0:
    case BESSEL_K1: y = bessel_k(b, a->row->rule - BESSEL_K0, false, x); break;
    case BESSEL_SCALED_K0:
    case BESSEL_SCALED_K1: y = bessel_k(b, a->row->rule - BESSEL_SCALED_K0, true, x); break;
    case BESSEL_AIRY_AI: y = airy_ai(b, x); break;
    default: y = spherical_j0(b, x);
  }
  o->out[0].val = tpu_convert(b, y, dtype);
}
