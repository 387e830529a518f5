// What one expression cannot say. Matrices are rows in order; leading axes of a shape are a batch.
const ERFCX = [/* erfcx */];
// Taylor coefficients of erf at 0, 1/8, ..., 6: its derivative y has y' = -2xy
const ERF = Float64Array.from([/* erf */].flatMap((value, node) => {
  const x = node / 8, y = [2 / Math.sqrt(Math.PI) * Math.exp(-x * x)];
  for (let k = 0; k < 10; k++) y.push(-2 * (x * y[k] + (k ? y[k - 1] : 0)) / (k + 1));
  return [value, ...y.map((c, k) => c / (k + 1))];
}));
const rt = {
  // exp(x^2) erfc(x) for x >= 0, by its Chebyshev series in (x - 3.75) / (x + 3.75)
  erfcx(x) {
    const z = 2 * (x - 3.75) / (x + 3.75);
    let a = 0, b = 0;
    for (let k = ERFCX.length - 1; k > 0; k--) {
      const last = a;
      a = z * a - b + ERFCX[k];
      b = last;
    }
    return z / 2 * a - b + ERFCX[0];
  },
  erfc(x) {
    if (Math.abs(x) < 0.5) return 1 - rt.erf(x);
    if (!(x < 27)) return Number.isNaN(x) ? x : 0;
    return x > 0 ? Math.exp(-x * x) * rt.erfcx(x) : 2 - rt.erfc(-x);
  },
  erf(x) {
    const a = Math.abs(x);
    if (!(a < 6)) return Number.isNaN(a) ? a : Math.sign(x);
    const node = (8 * a + 0.5) | 0, h = a - node / 8, at = 12 * node;
    let sum = 0;
    for (let k = 11; k >= 0; k--) sum = sum * h + ERF[at + k];
    return x < 0 ? -sum : sum;
  },
  // as in C, where 1 to any power is 1
  pow(x, y) {
    return x === 1 || (x === -1 && Math.abs(y) === Infinity) ? 1 : x ** y;
  },
  // numbers near 1.5 * 2^52 = 6755399441055744 are whole: to add it rounds, ties to even
  even(x) {
    return Math.abs(x) < 1e15 ? x + 6755399441055744 - 6755399441055744 : x;
  },
  each(shape, tail, work) {
    const size = shape.slice(-tail).reduce((a, b) => a * b, 1), all = shape.reduce((a, b) => a * b, 1);
    for (let start = 0; start < all; start += size) work(start, start + size, start / size);
  },
  // cyclic Jacobi rotations; eigenvectors as columns, eigenvalues ascending
  eigh(matrix, shape) {
    const n = shape[shape.length - 1], vectors = new Float64Array(matrix.length);
    const values = new Float64Array(matrix.length / (n || 1));
    rt.each(shape, 2, (start, end, batch) => {
      const [a, v] = rt.jacobi(matrix.slice(start, end), n);
      const order = Array.from({ length: n }, (_, i) => i).sort((i, j) => a[i * n + i] - a[j * n + j]);
      order.forEach((from, to) => {
        values[batch * n + to] = a[from * n + from];
        for (let k = 0; k < n; k++) vectors[start + k * n + to] = v[k * n + from];
      });
    });
    return [vectors, values];
  },
  jacobi(a, n) {
    const v = new Float64Array(n * n);
    for (let i = 0; i < n; i++) v[i * n + i] = 1;
    for (let sweep = 0; sweep < 30; sweep++) {
      let off = 0, all = 0;
      for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
        all += a[i * n + j] ** 2;
        if (i !== j) off += a[i * n + j] ** 2;
      }
      if (!(off > 1e-36 * all)) break;
      for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) {
        if (a[p * n + q] === 0) continue;
        const angle = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
        const t = (angle < 0 ? -1 : 1) / (Math.abs(angle) + Math.sqrt(angle * angle + 1));
        const c = 1 / Math.sqrt(t * t + 1), s = t * c;
        for (let k = 0; k < n; k++) rt.rotate(a, k * n + p, k * n + q, c, s);
        for (let k = 0; k < n; k++) rt.rotate(a, p * n + k, q * n + k, c, s);
        for (let k = 0; k < n; k++) rt.rotate(v, k * n + p, k * n + q, c, s);
      }
    }
    return [a, v];
  },
  rotate(a, i, j, c, s) {
    const x = a[i], y = a[j];
    a[i] = c * x - s * y;
    a[j] = s * x + c * y;
  },
  // the lower factor; all NaN if there is none
  cholesky(matrix, shape) {
    const n = shape[shape.length - 1], l = new Float64Array(matrix.length);
    rt.each(shape, 2, (start, end) => {
      for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
        let s = matrix[start + i * n + j];
        for (let k = 0; k < j; k++) s -= l[start + i * n + k] * l[start + j * n + k];
        if (i === j && !(s > 0)) return void l.fill(NaN, start, end);
        l[start + i * n + j] = i === j ? Math.sqrt(s) : s / l[start + j * n + j];
      }
    });
    return [l];
  },
  // X with A X = B, or X A = B if not left
  solve(a, aShape, b, bShape, left, lower, transposed, unit) {
    const n = aShape[aShape.length - 1], [rows, columns] = bShape.slice(-2), x = b.slice();
    rt.each(bShape, 2, (start, _end, batch) => {
      const at = (i, j) => a[batch * n * n + (transposed === left ? j * n + i : i * n + j)];
      const [count, across, along] = left ? [columns, 1, columns] : [rows, columns, 1];
      const down = lower !== (transposed === left);
      for (let c = 0; c < count; c++) for (let m = 0; m < n; m++) {
        const i = down ? m : n - 1 - m, place = start + c * across;
        let s = x[place + i * along];
        for (let k = down ? 0 : i + 1; k < (down ? i : n); k++) s -= at(i, k) * x[place + k * along];
        x[place + i * along] = unit ? s : s / at(i, i);
      }
    });
    return [x];
  },
};
